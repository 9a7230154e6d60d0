"""References as other systems write them, `{{a.title}}` or `steps.a.title`, with the spelling that works here."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from pml_gateway.exposure.unfilled import is_element
from pml_gateway.text import as_field, word_set, words_of

MAX_SPELLED = 5
"""Maximum number of placeholders of one text in a hint."""

MAX_REFERENCE = 300
"""Maximum number of characters of a placeholder: no text takes long to search."""

_ROOT = r"(?:\d+|[A-Za-z_][A-Za-z0-9_-]*)"
_PATH = r"(?:\??\.(?:first\(\)|\w+)|\.\*|\??\[[^\[\]]*\])*"
_BODY = rf"[^{{}}\n\\]{{1,{MAX_REFERENCE}}}?"
_ALL_STEPS = r"(?:steps?|nodes?|tasks?|calls?|outputs?|results?|responses?)"
"""Other systems' names for all steps."""

_OF_ALL_STEPS = rf"\$?{_ALL_STEPS}(?:\.{_ROOT}|\[[\"']?{_ROOT}[\"']?\]|\([\"']{_ROOT}[\"']\))|\$\([\"']{_ROOT}[\"']\)"
_FOUND = re.compile(
    r"\$\$(?:\{\{)?"
    rf"|(?P<escape>\\)?(?:\$(?P<unnamed>(?P<field>{_ROOT}{_PATH}\.)?\{{?<(?P<words>[^<>\n]{{1,60}})>\}}?{_PATH})"
    rf"|\$?\{{{{2,3}}(?P<braces>{_BODY})\}}{{2,3}}|\$\{{(?P<shell>{_BODY})\}}"
    rf"|(?P<of_all>(?=\$)(?:{_OF_ALL_STEPS}){_PATH})"
    rf"|(?<![\w&/#])#(?P<evidence>[A-Za-z]{{1,8}}\d{{1,3}}(?![\w-]){_PATH}))"
    rf"|\A(?=.{{1,{MAX_REFERENCE}}}\Z)\$(?P<numbered>[A-Za-z_][A-Za-z0-9_-]*{_PATH}\.\d+{_PATH})\Z"
)
"""An escaped dollar sign, or a possible placeholder with the backslash that makes it text; their length is bounded."""

_STEP = re.compile(
    rf"(?:(?P<all>\$?(?P<word>{_ALL_STEPS})(?:\.|\[[\"']?|\([\"'])|\$\([\"'])(?P<of_all>{_ROOT})[\"']?[\])]?"
    rf"|\$?(?P<root>{_ROOT}))(?P<path>{_PATH})(?=[\s|]|\Z)",
    re.ASCII,
)
"""A step and a path; the step may be one of another system's list of all steps."""

_NAMED = re.compile(rf"\$?(?P<root>{_ROOT})(?P<path>{_PATH})(?=[\s|]|\Z)", re.ASCII)
_BEGUN = re.compile(rf"[^\w]{{0,12}}({_ROOT})", re.ASCII)
_OF_ANY_STEP = re.compile(
    rf"\$?\{{\{{(?P<braces>{_BODY})\}}\}}|\$\{{(?P<shell>{_BODY})\}}|\$(?P<bare>{_ROOT}{_PATH})"
    rf"|#(?P<evidence>E\d{{1,3}}{_PATH})"
)
"""A text that can be a reference to a step by any name."""

_OF_STEPS = word_set("step steps id previous prev last node task call output result")
_LABEL = re.compile(rf"(?i:refs?|references?|content|value|the|{_ALL_STEPS})\Z")
_LABELLED = re.compile(rf"(?i:(?:refs?|references?|{_ALL_STEPS})\s?:\s?)(?={_ROOT})", re.ASCII)
_IN_WORDS = re.compile(
    rf"(?:the )?(?:outputs?|results?|response|content|value) (?:of|from) (?:the )?(?:step )?(?P<last>{_ROOT})"
    rf"|(?:the )?(?P<first>{_ROOT})(?:'s)? (?:step )?(?:outputs?|results?|response)"
)
"""A step in words, between signs: `<output of read>`, `[read result]`."""

_WRAPPING = re.compile(r"\.(?:outputs?|result|json)(?=\.)")
_WRAPPING_ALL = re.compile(r"\.(?:outputs?|result|response|results(?!\[)|(?:(?:item|first\(\))\.)?json)(?=[.\[]|\Z)")
"""Fields in which other systems wrap the result of a step."""

_LIKE_A_STEP = re.compile(
    r"(?i)(?:prev|previous|last|prior|item|steps?|nodes?|tasks?|calls?|outputs?|results?|responses?)(?:[_-]?\d|_|\Z)"
)
"""Roots that can only mean a step or an item, even if there is none with this name."""

_EVIDENCE = re.compile(r"E(\d{1,3})\Z")
"""The results of the steps in a plan, of which the first is `#E1`."""

_NUMBERED = re.compile(r"(?i)(?:steps?|nodes?|tasks?|calls?|outputs?|results?)[_-]?(\d{1,3})\Z")
_LONG_NAME = re.compile(r"\.[a-z_]{3}")
_NAME_OR_ITEM = re.compile(r"\??\.?[A-Za-z_*\[]")
_BARE = re.compile(rf"\${_ROOT}")
_BY_PLACE = re.compile(r"(?i)prev|previous|(?:steps?|calls?|outputs?|results?)[_-]?\d{1,2}")
"""Names of steps by their place, which models use even if the steps have ids."""

_GOES_ON = re.compile(r"[\w(\[]|\.[\w*\"]")
"""Text after a reference that would be read as part of it."""

_MARKS = (("{{{", "}}}"), ("${{", "}}"), ("{{", "}}"), ("${", "}"), ("#{", "}"), ("@{", "}"), ("{", "}"), ("$(", ")"))
_SIGNS = (("<<", ">>"), ("<", ">"), ("‹", "›"), ("‹", ">"), ("$", "$"), ("==", ""), ("=", ""), ("#", ""))
_WEAK_SIGNS = (("[[", "]]"), ("[", "]"), ("`", "`"), ("%", "%"), ("(", ")"), ("@", ""), ("$.", ""))
"""Signs around or before a step: the weak ones are a reference only if a path follows the step."""

_FILES = word_set(
    """
    txt md rst pdf png jpg jpeg gif webp bmp ico doc docx odt xls xlsx ods ppt pptx py pyi ipynb js mjs ts tsx jsx go
    rs rb java kt c h cc cpp hpp cs php sh bash zsh bat ps1 toml ini cfg conf env zip gz tar tgz bz2 xz 7z mp3 mp4
    wav mov avi mkv db sqlite parquet bak tmp exe dll so jar ipa apk
    """
)
_HOSTS = word_set("com org net io dev app ai edu gov eu de ch at uk fr us ca au jp cn local internal localhost")
_FORMATS = word_set("html htm xml json jsonl yaml yml csv tsv log svg sql css")
"""Endings of files and hosts; `found.json` could also be a field, unless the argument names a place."""

_PLACES = word_set(
    """
    path paths file files filename name names source sources destination target uri url href host domain folder
    directory dir key attachment attachments output input from to
    """
)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder in a text: its position, the reference that it means, and whether a backslash makes it text.

    The reference is empty if it names no step. `is_guessed` if a step is meant by its place alone.
    """

    start: int
    end: int
    reference: str
    is_escaped: bool
    is_guessed: bool = False


def placeholders(
    text: str, names: Container[str], *, with_path: bool = False, argument: str = "", earlier: Sequence[str] = ()
) -> Iterator[Placeholder]:
    """Yield the placeholders that refer to a step; ignore the syntax of other templates.

    One that is a whole text also counts if no step has its name, but steps could, as in `{{step1.title}}`.

    Args:
        text: any text.
        names: the steps by index and id, and all other roots.
        with_path: True to yield only those with a path after the step.
        argument: the name of the argument, which tells a file name from a field.
        earlier: the ids of the steps before this one, in order.
    """
    begun = _BEGUN.match(text) if len(text) <= MAX_REFERENCE else None
    if begun is not None and (begun[1] in names or _LABEL.match(begun[1]) or _BY_PLACE.fullmatch(begun[1])):
        whole = _whole(text, names, with_path, argument, earlier)
        if whole is not None:
            yield whole
            return
    if "$" not in text and "{{" not in text and "#" not in text:
        return
    for found in _FOUND.finditer(text):
        is_whole = found.end() == len(text) and not text[: found.start()].strip("\\")
        if found["unnamed"] is not None:
            words = set(words_of(found["words"]))
            # `$<year>` is a group in the replacement of a regular expression.
            names_a_step = "step" in words or (found["field"] and is_whole)
            if names_a_step or (is_whole and found[0][-1] not in ">}" and not _OF_STEPS.isdisjoint(words)):
                yield Placeholder(found.start(), found.end(), "", found["escape"] is not None)
            continue
        body = found["braces"] or found["shell"] or found["of_all"] or found["evidence"] or found["numbered"]
        step = None if body is None else _step(body.strip(), names)
        if step is None:
            continue
        root, reference = step
        path = reference.removeprefix(f"${root}")
        # `{{0}}` and `${1}` are positions in other templates.
        is_meant = path or found["of_all"] or not (with_path or root.isdigit())
        if found["of_all"] and root not in names:
            continue
        if root in names and is_meant:
            yield Placeholder(found.start(), found.end(), reference, found["escape"] is not None)
        elif with_path or not is_whole:
            continue
        elif _EVIDENCE.match(root) and earlier if found["evidence"] else path and _LIKE_A_STEP.match(root):
            yield _by_place_alone(found.start(), found.end(), root, path, earlier, found["escape"] is not None)


def of_all_steps(text: str, names: Container[str]) -> Iterator[Placeholder]:
    """Yield the steps that an expression reads as other systems do, `steps.a.output` or `outputs["a"]`."""
    for found in re.finditer(rf"(?<![\w.\]]){_OF_ALL_STEPS}", text):
        step = _step(text[found.start() :], names)
        path = _STEP.match(text, found.start())
        if step is not None and path is not None and step[0] in names:
            yield Placeholder(found.start(), path.end(), step[1], is_escaped=False)


def _whole(
    text: str, names: Container[str], with_path: bool, argument: str, earlier: Sequence[str]
) -> Placeholder | None:
    """Return the placeholder that a whole text is: a step with a sign of other systems, or with a path and no sign."""
    written = text.lstrip("\\")
    inner, sign = written.strip(), ""
    for opening, closing in (*_MARKS, *_SIGNS, *_WEAK_SIGNS) * 2:
        if inner.startswith(opening) and inner.endswith(closing) and len(inner) > len(opening + closing):
            inner, sign = inner[len(opening) : len(inner) - len(closing)].strip(), sign or opening
    words = _IN_WORDS.fullmatch(inner) if sign else None
    if words is not None:
        named = words["last"] or words["first"]
        is_step = named in names and not named.isdigit() and not with_path
        return Placeholder(0, len(text), f"${named}", len(written) < len(text)) if is_step else None
    label = _LABELLED.match(inner)
    step = _step(inner[label.end() :] if label is not None else inner, names, is_whole=True)
    if step is None:
        return None
    root, reference = step
    path = reference.removeprefix(f"${root}")
    if root not in names:
        # Those in braces are found below, also in the middle of a text.
        is_named = (
            not {"{", "$"}.intersection(text)
            and _BY_PLACE.fullmatch(root) is not None
            and not _is_place(inner, argument)
        )
        is_step = is_named and bool(path) and not with_path
        return _by_place_alone(0, len(text), root, path, earlier, len(written) < len(text)) if is_step else None
    found = _NAMED.match(inner)
    if label is None and found is not None and found["root"] == root:
        # `$a.title` is a reference already, with a sign around it a text with a value in it.
        is_written = inner.startswith("$") and not sign.startswith("=")
        is_meant = not is_written and _is_meant(inner, found["path"], sign, argument)
        if not is_meant or (with_path and not path):
            return None
    return Placeholder(0, len(text), reference, len(written) < len(text))


def _by_place_alone(
    start: int, end: int, root: str, path: str, earlier: Sequence[str], is_escaped: bool
) -> Placeholder:
    """Return the placeholder of a step that has not this name, with the step that its place tells."""
    near = by_place(root, earlier)
    return Placeholder(start, end, f"${near[0]}{path}" if near else "", is_escaped, is_guessed=True)


def by_place(root: str, earlier: Sequence[str]) -> list[str]:
    """Return the earlier step that a name such as `prev`, `step1` or `E1` means; empty if that is ambiguous."""
    if root.lower() in ("prev", "previous", "last"):
        return list(earlier[-1:])
    evidence, number = _EVIDENCE.match(root), _NUMBERED.match(root)
    if evidence is not None:
        return list(earlier[int(evidence[1]) - 1 : int(evidence[1])]) if int(evidence[1]) else []
    places = [] if number is None else [place for place in (int(number[1]), int(number[1]) - 1) if place >= 0]
    before = [earlier[place] for place in places if place < len(earlier)]
    return before if len(before) == 1 else []


def is_of_any_step(text: str) -> bool:
    """Return True for a whole text that can only mean the result of a step, whatever the step is called."""
    found = _OF_ANY_STEP.fullmatch(text) if len(text) <= MAX_REFERENCE else None
    if found is None or found["evidence"]:
        return found is not None
    named = _NAMED.match((found["braces"] or found["shell"] or found["bare"]).strip())
    if named is None or named["root"].isdigit():
        return False
    return bool(named["path"]) or _BY_PLACE.fullmatch(named["root"]) is not None


def _is_meant(inner: str, path: str, sign: str, argument: str) -> bool:
    """Return True if a step by its name can only be a reference, as far as a sign or a path tells."""
    if not path:
        is_step = not inner[0].isdigit() and not (sign == "<" and is_element(inner))
        return is_step and any(sign == opening for opening, _ in (*_MARKS, *_SIGNS))
    if sign:
        return True
    # `1.Introduction` is a heading, and `2.x` a version.
    first = _LONG_NAME if inner[0].isdigit() else _NAME_OR_ITEM
    return first.match(path) is not None and not _is_place(inner, argument)


def _is_place(text: str, argument: str) -> bool:
    """Return True for the name of a file or host, such as `report.md`."""
    ending = text.rpartition(".")[2].lower()
    return ending in _FILES | _HOSTS or (ending in _FORMATS and not _PLACES.isdisjoint(words_of(argument)))


def _step(body: str, names: Container[str], *, is_whole: bool = False) -> tuple[str, str] | None:
    """Return the root and the right spelling of a step and a path, after another system's name for all steps."""
    found = _NAMED.match(body)
    of_all = None if found is not None and found["root"] in names else _STEP.match(body)
    if of_all is not None and of_all["of_all"] is not None and (of_all["of_all"] in names or found is None):
        root, path = of_all["of_all"], _WRAPPING_ALL.sub("", _spelled_path(of_all["path"]), count=1)
        found = of_all
    elif found is not None:
        root, path = found["root"], _WRAPPING.sub("", _spelled_path(found["path"]), count=1)
    if found is None or (is_whole and found.end() < len(body)):
        return None
    return root, f"${root}{path}"


def _spelled_path(path: str) -> str:
    """Return a path with indexes and quoted names as they are written here."""
    path = re.sub(r"\.(\d+)", r"[\1]", path.replace("?", ""))
    return re.sub(
        r"""\[(?:["']([^"'\]]+)["']|([A-Za-z_]\w*))\]""", lambda name: f".{as_field(name[1] or name[2])}", path
    )


def spelled(text: str, found: Sequence[Placeholder], *, is_expression: bool = False) -> str:
    """Return a hint that says what to write instead of each placeholder of a text or an expression."""
    first = [each for each in found if each.reference][:MAX_SPELLED]
    is_bare = any(_BARE.fullmatch(each.reference) and each.end - each.start < len(text) for each in first)
    if is_bare and not is_expression and len(text) <= MAX_REFERENCE:
        return f"write {_quoted(_joined(text, found))} instead of {_quoted(text)}"
    hints = [f"write {_instead(each)} instead of {_quoted(text[each.start : each.end])}" for each in first]
    joined = [each.reference for each in first if not is_expression and _GOES_ON.match(text, each.end)]
    hints += [f"with text right behind it: {reference} | join('', [to_string(@), '.md'])" for reference in joined[:1]]
    return "; ".join(dict.fromkeys(hints))


def _instead(placeholder: Placeholder) -> str:
    """Return the reference, with a field if a step that is meant by its place has to have one in a text."""
    reference = placeholder.reference
    is_bare = placeholder.is_guessed and _BARE.fullmatch(reference) is not None
    return _quoted(reference) + (f', or a field of its result, such as "{reference}.id",' if is_bare else "")


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


def _joined(text: str, found: Sequence[Placeholder]) -> str:
    """Return the expression of a text with whole results in it, where `$a` is a reference only if a path follows."""
    ends = [0, *(each.end for each in found)]
    starts = [*(each.start for each in found), len(text)]
    literals = [text[begin:end].replace("'", "\\'") for begin, end in zip(ends, starts, strict=True)]
    values = [*(f"to_string({each.reference})" for each in found), ""]
    parts = [part for literal, value in zip(literals, values, strict=True) for part in (f"'{literal}'", value)]
    return f"join('', [{', '.join(part for part in parts if part.strip(chr(39)))}])"


def without_escapes(text: str, found: Sequence[Placeholder]) -> str:
    """Return the text without the backslashes before placeholders."""
    starts = [each.start for each in found if each.is_escaped]
    parts = [text[begin:end] for begin, end in zip([0, *(at + 1 for at in starts)], [*starts, len(text)], strict=True)]
    return "".join(parts)
