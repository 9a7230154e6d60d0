"""Placeholders that a model left in arguments, `<string>` or `<your id here>`, and real texts that look like one."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped
from pml_gateway.text import first_sentence, shortened, word_set, words_of
from pml_gateway.types import JsonObject

MAX_PLACEHOLDER = 120
"""Maximum number of characters of a placeholder; longer texts are not searched."""

MAX_URL = 2_000
"""Maximum number of characters of a URL that is searched."""

MAX_JSON = 10_000
"""Maximum number of characters of JSON text that is searched."""

MAX_VALUES = 20_000
"""Maximum number of values that are looked at: nobody writes more of them by hand."""

MAX_DEPTH = 50
"""Maximum depth of values that are looked at."""

MAX_NEAR = 50
"""Maximum number of names next to a value whose words may be in its placeholder."""

MAX_POINTER = 2_000
"""Maximum number of characters of the pointer to a value that is looked at."""

MAX_AROUND = 200
"""Number of words around a value from which on no more are added."""

MAX_NAME = 100
"""Maximum number of characters of a name whose words are read."""

MAX_READ = 10_000
"""Maximum number of characters that are read in texts that look like placeholders, about 30 ms of work."""

MAX_TOLD = 10
"""Maximum number of placeholders in one answer."""

_BODY = r"[^<>‹›«»{}\[\]%\n]*"
_SHAPES = (
    ("double", re.compile(rf"<<({_BODY})>>")),
    ("angle", re.compile(rf"<({_BODY})>|‹({_BODY})>|<({_BODY})›")),
    ("double", re.compile(rf"\{{{{2,3}}({_BODY})\}}{{2,3}}")),
    ("sign", re.compile(rf"\{{({_BODY})\}}|\[{{1,2}}({_BODY})\]{{1,2}}|[‹«]({_BODY})[›»]")),
    # `${HOME}` and `%PATH%` are variables of an environment.
    ("sign", re.compile(rf"\$\{{(?=.*[a-z])({_BODY})\}}|%(?=.*[a-z])({_BODY})%")),
)
"""Placeholders by their signs; those of `sign` are common around real texts, so that more must tell them apart."""

_SIGNS = "<‹«{[$%"
"""The beginnings of placeholders with signs."""

_BETWEEN = re.compile(r"[-/\s@:._,|#]{0,3}")
"""Text between several placeholders that are one value together, as in `<owner>/<repo>`."""

_PLAIN = re.compile(r"[^\W\d_][\w\s.,:|/'’()?…-]*", re.DOTALL)
"""Words, and not the attributes or the end of an element, an address or an expression."""

_LEFT_OUT = re.compile(r"(?:\.{3,}|…+|_{2,}|\?{2,}|[xX]{3,})")
_TOKEN = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)+")


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _set(text: str) -> frozenset[str]:
    return frozenset(map(_singular, word_set(text)))


_MARKING = _set("your placeholder todo tbd fixme")
_FIRST = _set("insert enter put add paste replace fill provide specify choose pick")
"""Words that only a placeholder has, anywhere or as the first of several."""

_TYPES = _set(
    """
    string str text number num int integer float double decimal boolean bool array list object dict json any null
    date datetime time timestamp uuid guid url uri email yyyy mm dd hh ss iso
    """
)
_FILLING = _set(
    """
    a an the my some any this that of from to for in with and or as is be e g eg ex example actual real valid correct
    desired optional required here goes value values format same
    """
)
_LINKING = _set("a an the of from to for in with your that")
_MISSING = _set("no not none unknown empty missing without redacted hidden deleted")
_NOUNS = _set(
    """
    id ids name names title path file filename folder directory dir link url uri address mail email phone user
    username login password token key secret api access account owner repo repository branch project org organization
    organisation team issue ticket task page document doc note message channel thread comment body content
    description summary query search term keyword date time day month year start end city country location place
    street zip code number amount price quantity count limit offset size status state type kind label tag category
    color language currency first last full middle data result results output response input field column row
    database uuid hash sha commit version event calendar contact customer client order invoice product item image
    photo host port ip domain server step previous call tool
    """
)
_TYPED_NOUNS = _NOUNS | _TYPES
_COMMON = _FILLING | _TYPED_NOUNS
_ELEMENTS = word_set(
    """
    a abbr address area article aside audio b base blockquote body br button canvas caption circle cite code col
    colgroup data datalist dd del details dfn dialog div dl dt em embed fieldset figcaption figure footer form g h1
    h2 h3 h4 h5 h6 head header hgroup hr html i iframe image img input ins kbd label legend li line link main map
    mark menu meta meter nav noscript object ol optgroup option output p param path picture pre progress q rect root
    rp rt ruby s samp script search section select slot small source span strong style sub summary sup svg table
    tbody td template textarea tfoot th thead time title tr track u ul use var video wbr
    """
)
"""Elements of HTML and SVG, which are a placeholder only as the name of the very parameter."""

_FREE_TEXTS = _set(
    """
    query pattern regex regexp search find needle text content body html xml markup code source snippet template
    message old new replacement replace selector expression command sql prompt description comment title subject
    string value data script css input xpath tag element
    """
)
"""Words of parameters that take any text: there, `<username>` may be an element that is looked for."""

_VERBATIM = _set("pattern regex regexp find needle replacement replace template selector xpath expression glob")
_EDITED = _set("old new string str text content code line block source snippet value")
"""Words of parameters whose text is compared or put in as it stands: `<your name>` may be what a file says."""

_WRITTEN = _set("query search text content body message comment description note prompt code source snippet command")
"""Words of parameters whose texts may be signs alone, or the name of a placeholder without signs."""

_WHOLE = _set("body content")
"""Words of parameters whose texts are never only dots."""

_VARIABLE = re.compile(
    r"\$\{(?P<braces>[A-Za-z_]\w*)\}|\$(?P<bare>[A-Z][A-Z0-9_]+)|%(?P<percent>[A-Za-z_]\w*)%|__(?P<lines>[A-Z]\w*)__",
    re.ASCII,
)
"""A variable of a shell or of a template as a whole value: `${POD_NAME}`, `$POD_NAME`, `%NAME%`, `__NAME__`."""

_CROSSES = re.compile(
    r"(?:[A-Za-z0-9+#]{1,8}[-_ .:]{1,2}){0,2}(?:[A-Za-z0-9+#]{0,5}?(?:x{4,}|X{4,}|\*{4,}|\#{4,})|[(#]?(?:x{3,}|X{3,}))"
    r"(?:[-_ .:()/]{0,2}[xX*#])*"
)
"""Crosses in place of a value, with what all such values begin with: `CXXXXXXXX`, `xxxx-xxxx`, `sk-****`."""

_RUN = re.compile(r"xxx|XXX|\*{4}|#{4}")
_NO_LETTER = re.compile(r"[-_]")
_CUT = re.compile(r"[\w-]{2,}(?:\.{3}|…)")
_DAY = re.compile(r"YYYY[-/.]MM[-/.]DD.{0,20}|DD[-/.]MM[-/.]YYYY|MM[-/.]DD[-/.]YYYY")
_TO_DO = re.compile(r"TODO|FIXME|(?i:TBD|TBA|N/A|placeholder|change[-_]?me|undefined)")
"""Words for a value that is still to come; `todo` and `none` are also values."""

_TYPE = re.compile(r"(?i:string|str|integer|int|number|float|boolean|bool|uuid|guid|uuidv?4)")
_IDENTIFYING = _set(
    "id ids uuid guid key token number sha slug secret password username login email phone host url uri"
)
_IDENTIFYING_FORMATS = frozenset({"uuid", "email", "uri", "url", "hostname", "ipv4", "ipv6", "date", "date-time"})
_MACHINE_NAMES = _set(
    "pod deployment service container cluster namespace node bucket instance server host user account owner queue"
)
"""Things whose names are identifiers; a list, a file or a package may well be called `TODO` or `uuid`."""

_OF_CHOICE = _set(
    """
    type field column element attribute property variable environment env symbol function method class identifier
    package library module crate topic icon language status state list label section tag board category sort group
    """
)
"""Words of parameters whose identifiers are words that somebody chose, such as `status_id` and `sort_key`."""

_URLS = _set("url uri link href endpoint website webhook homepage")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LEFT_IN_URL = re.compile(
    r"<([^<>\n]{1,80})>|\$\{(\w{1,80})\}|\{\{\s{0,3}([\w.-]{1,80})\s{0,3}\}\}|\{([\w-]{2,80})\}"
    r"|(?<![A-Za-z0-9_-])((?:YOUR|INSERT)[_-][A-Z0-9_-]{2,80})(?![a-z])"
)
"""Placeholders inside of a URL, where no character of the signs may stand."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a value: its pointer, the name of the parameter and its schema, and names around it."""

    pointer: str
    name: str
    schema: JsonObject
    around: frozenset[str]


def is_element(word: str) -> bool:
    """Return True for the name of an element of HTML or SVG."""
    return word.lower() in _ELEMENTS


def parameters_of(tool: CatalogTool) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name."""
    properties = tool.definition["inputSchema"].get("properties")
    return properties if isinstance(properties, dict) else {}


def filled(
    parameters: Mapping[str, Any] | None, arguments: JsonObject, tool: str, steps: Container[str] = ()
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the arguments without the backslashes that make placeholders text, and a problem for each placeholder.

    Args:
        parameters: the schemas of the tool's parameters by name; None if they are not known.
        arguments: the arguments as a model wrote them.
        tool: the name of the tool.
        steps: the names of steps, which are no variables.
    """
    if parameters is None:
        return arguments, []
    reader = _Reader(frozenset(_singular(word) for word in words_of(tool)), steps)
    schema = {"properties": parameters}
    return reader.value(arguments, _Place("", "", schema, frozenset())), reader.problems[:MAX_TOLD]


class _Reader:
    """A reader of the texts in arguments, which are few where there are placeholders."""

    def __init__(self, tool: frozenset[str], steps: Container[str]) -> None:
        self.problems: list[JsonObject] = []
        self._tool = tool
        self._steps = steps
        self._left = MAX_VALUES
        self._unread = MAX_READ

    def value(self, value: Any, place: _Place, depth: int = 0) -> Any:
        """Return a value without the backslashes before placeholders."""
        self._left -= 1
        is_spent = self._left < 0 or self._unread < 0 or len(self.problems) >= MAX_TOLD
        if is_spent or depth > MAX_DEPTH or len(place.pointer) > MAX_POINTER:
            return value
        match value:
            case str():
                inside = _inside(value, place.schema)
                read = self._text(value, place) if inside is None else self.value(inside, place, depth + 1)
                return value if read is inside else read
            case dict():
                names = islice(value, MAX_NEAR if len(place.around) < MAX_AROUND else 0)
                around = place.around.union(*map(_name_words, names))
                properties = place.schema.get("properties")
                known = properties if isinstance(properties, Mapping) else {}
                found: Any = {}
                for name, item in value.items():
                    inside = _Place(f"{place.pointer}/{escaped(name)}", name, _schema(known.get(name)), around)
                    found[name] = self.value(item, inside, depth + 1)
            case list():
                schema = _schema(place.schema.get("items"))
                found = [
                    self.value(item, replace(place, pointer=f"{place.pointer}/{at}", schema=schema), depth + 1)
                    for at, item in enumerate(value)
                ]
            case _:
                return value
        is_same = all(new is old for new, old in zip(_values(found), _values(value), strict=True))
        return value if is_same else found

    def _text(self, text: str, place: _Place) -> str:
        if len(text) > MAX_URL:
            return text
        bare = text.lstrip("\\").strip()
        left = self._unfilled(bare, place) if bare else None
        if left is None or text in _allowed(place.schema):
            return text
        if text.startswith("\\"):
            return text[1:]
        name, shown = shortened(place.name, 60) or "value", shortened(left, 60)
        needed = _described(place.schema)
        asked = f"write the {name} that is meant instead of {shown}{needed}; a backslash before it makes it text"
        if left != bare:
            asked = f"write what is meant instead of {shown} in the {name}; a backslash before all of it makes it text"
        self.problems.append(
            {"path": place.pointer, "message": f"{shown!r} is a placeholder, and no value", "hint": asked}
        )
        return text

    def _unfilled(self, text: str, place: _Place) -> str | None:
        """Return the placeholder that a text is, or that a URL contains."""
        if _URL.match(text):
            return self._unfilled_in_url(text, place)
        is_left = len(text) <= MAX_PLACEHOLDER and (self._is_placeholder(text, place) or self._is_unset(text, place))
        return text if is_left else None

    def _unfilled_in_url(self, text: str, place: _Place) -> str | None:
        is_url = _last_word(place.name) in _URLS or place.schema.get("format") in ("uri", "url")
        # With an end of an element it is markup, as in a test of a page.
        if not is_url or not _is_declared(place) or "</" in text or "/>" in text:
            return None
        self._unread -= len(text)
        for found in _LEFT_IN_URL.finditer(text):
            angle, shell, *named = found.groups()
            # `{z}` and `{bbox}` are for the program that gets the URL.
            words = set(map(_singular, words_of(next(filter(None, named), "")))) - _FIRST - _MARKING
            if shell or (_PLAIN.fullmatch(angle) if angle else self._are_known(list(words), place)):
                return found[0]
        return None

    def _is_unset(self, text: str, place: _Place) -> bool:
        """Return True for a text that is no value of an identifier or a name, but could be one of another text."""
        own, last = _name_words(place.name), _last_word(place.name)
        is_id = last in _IDENTIFYING or place.schema.get("format") in _IDENTIFYING_FORMATS
        is_name = last == "name" or last in _MACHINE_NAMES
        if not (is_id or is_name or last == "date") or not _is_declared(place) or not _takes_text(place.schema):
            return False
        is_chosen = not _OF_CHOICE.isdisjoint(own)
        variable = _VARIABLE.fullmatch(text)
        if variable is not None:
            named = next(name for name in variable.groups() if name is not None)
            is_for_variables = is_chosen or not {"env", "environment", "variable", "symbol"}.isdisjoint(self._tool)
            # `$UMMER24` is a password, `$DB_PASSWORD` a variable.
            is_text = last in ("password", "secret") and variable["braces"] is None and not own & _name_words(named)
            return not (is_for_variables or is_text) and named not in self._steps
        if _RUN.search(text):
            self._unread -= len(text)
            if _CROSSES.fullmatch(text):
                return not is_name or is_id or len(text) > len("xXx")
        if last == "date":
            return _DAY.fullmatch(text) is not None
        if is_chosen or (last == "key" and "value" in place.around):
            return False
        if _CUT.fullmatch(text):
            return is_id
        is_strict = (is_id and last != "slug") or not _MACHINE_NAMES.isdisjoint(own)
        if _TO_DO.fullmatch(text):
            return is_strict or is_id
        is_own = len(own) > 1 and is_id and _NO_LETTER.sub("", text).lower() == _NO_LETTER.sub("", place.name).lower()
        return is_own or (is_strict and _TYPE.fullmatch(text) is not None)

    def _is_placeholder(self, text: str, place: _Place) -> bool:
        own = _name_words(place.name)
        is_edited = own <= _EDITED and not own.isdisjoint({"old", "new"})
        is_verbatim = is_edited or (not _VERBATIM.isdisjoint(own) and own.isdisjoint(_IDENTIFYING | {"name", "path"}))
        if is_verbatim and _takes_text(place.schema):
            # `<old text>` is one even there.
            self._unread -= len(text)
            return any(_words(body[:MAX_NAME]) == own for _, body in _bodies(text) or ())
        is_written = not _WRITTEN.isdisjoint(own) and _takes_text(place.schema)
        if _LEFT_OUT.fullmatch(text):
            is_short = is_written and own.isdisjoint(_WHOLE)
            return text[0] in ".…" and not is_short and "path" not in own
        is_word = _TOKEN.fullmatch(text) is not None
        if not is_word and text[0] not in _SIGNS:
            return False
        self._unread -= len(text)
        if (bodies := _bodies(text)) is not None:
            return all(self._is_body(body, sign, place) for sign, body in bodies)
        words = [_singular(word) for word in words_of(text)] if is_word else []
        if is_written and own.isdisjoint(words):
            return False
        if words[:1] == ["your"]:
            return self._are_known(words[1:], place)
        return words[-1:] == ["here"] and words[0] in _FIRST

    def _are_known(self, words: list[str], place: _Place) -> bool:
        unknown = set(words) - _COMMON - _name_words(place.name) - place.around
        return unknown <= self._tool

    def _is_body(self, body: str, sign: str, place: _Place) -> bool:
        """Return True if the text between the signs stands for a value."""
        if _LEFT_OUT.fullmatch(body):
            return sign != "sign" or body[0] in ".…"
        if _PLAIN.fullmatch(body) is None or body.endswith("/"):
            return False
        words = [_singular(word) for word in words_of(body)]
        if not words:
            return False
        if len(words) > 1 and (words[0] in _FIRST or words[-1] == "here"):
            return True
        own = _name_words(place.name)
        is_free = not _FREE_TEXTS.isdisjoint(own)
        if not _MARKING.isdisjoint(words):
            return not (is_free and sign == "sign" and _takes_text(place.schema) and own.isdisjoint(words))
        if sign == "angle" and len(words) == 1 and is_element(body) and own != {words[0]}:
            return False
        if not _takes_text(place.schema) and sign != "sign":
            return True
        if not _MISSING.isdisjoint(words):
            return False
        is_sentence = " " in body and len(words) > 2 and not _LINKING.isdisjoint(words)
        is_last = words[-1] in _TYPED_NOUNS or words[-1] in own
        is_noun = sign != "sign" and len(words) > 1 and not is_element(words[0]) and is_last
        is_known = self._are_known(words, place) or (is_noun and (" " in body or "_" in body or not is_free))
        if not own.isdisjoint(words) or not _TYPES.isdisjoint(words):
            return is_known or (is_sentence and sign != "sign")
        is_name = body[0].isupper() and not body.isupper() and len(words) > 1 and " " not in body
        return is_known and sign != "sign" and not is_name and "." not in body and (is_sentence or not is_free)


def _values(holder: Any) -> Iterator[Any]:
    yield from holder.values() if isinstance(holder, dict) else holder


def _schema(schema: Any) -> JsonObject:
    return schema if isinstance(schema, dict) else {}


def _bodies(text: str) -> list[tuple[str, str]] | None:
    """Return the texts between signs, each with the kind of its signs, if the text consists of nothing else."""
    found, at = [], 0
    while at < len(text):
        shape = next(((sign, match) for sign, shape in _SHAPES if (match := shape.match(text, at))), None)
        if shape is None:
            return None
        sign, match = shape
        found.append((sign, next(body for body in match.groups() if body is not None).strip()))
        between = _BETWEEN.match(text, match.end())
        at = between.end() if between is not None else match.end()
    return found


def _name_words(name: str) -> frozenset[str]:
    return _words(name[:MAX_NAME])


@lru_cache(maxsize=1024)
def _words(name: str) -> frozenset[str]:
    return frozenset(map(_singular, words_of(name)))


@lru_cache(maxsize=1024)
def _last_word(name: str) -> str:
    words = words_of(name[-MAX_NAME:])
    return _singular(words[-1]) if words else ""


def _is_declared(place: _Place) -> bool:
    """Return True for an argument, and for a field that a schema describes; others may be types by name."""
    return bool(place.schema) or place.pointer.count("/") == 1


def kinds_of(schema: JsonObject) -> frozenset[str]:
    """Return the types that a schema names, itself or in a choice; empty if it names none."""
    branches = [each for key in ("anyOf", "oneOf") if isinstance(given := schema.get(key), list) for each in given]
    kinds: list[Any] = []
    for each in (schema, *branches):
        kind = each.get("type") if isinstance(each, dict) else None
        kinds += kind if isinstance(kind, list) else [kind]
    return frozenset(kind for kind in kinds if isinstance(kind, str))


def _takes_text(schema: JsonObject) -> bool:
    kinds = kinds_of(schema)
    return not kinds or "string" in kinds


def _inside(text: str, schema: JsonObject) -> Any:
    """Return the list or object that a text holds as JSON where no text is taken; None if it holds none."""
    if text[:1] not in ("[", "{") or len(text) > MAX_JSON or _takes_text(schema):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _allowed(schema: JsonObject) -> list[Any]:
    """Return the texts that a schema itself gives as values."""
    listed = [each for key in ("enum", "examples") if isinstance(given := schema.get(key), list) for each in given]
    return [*listed, schema.get("const"), schema.get("default")]


def _described(schema: JsonObject) -> str:
    """Return the type and the first sentence of the description of a parameter in brackets, if they are known."""
    kind, description = schema.get("type"), schema.get("description")
    named = [kind] if isinstance(kind, str) else []
    told = [first_sentence(description, 100).rstrip(".")] if isinstance(description, str) and description else []
    return f" ({': '.join(named + told)})" if named or told else ""
