"""Concepts: what a tool yields and what it needs, read from its name, its schemas and its words.

A concept is the stems of a few words. A field `id` under `issues` is an `issue id`; so is the parameter `issue_id`, and
the plain `id` of `get_issue`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from pml_gateway.index.names import squash
from pml_gateway.index.text import split_words
from pml_gateway.index.verbs import EFFECTS, Effect
from pml_gateway.text import as_field
from pml_gateway.types import JsonObject

MAX_FIELDS = 120
MAX_DEPTH = 6
"""Fields of one output that are read, those nearest to its root: what lies deeper is rarely wanted by a next call."""

MAX_NEEDS = 60
PARAMETER_DEPTH = 2
"""Parameters of one tool that are read, and how deep objects in them are looked into."""

DESCRIBED = 160
"""Characters of a description: what it is comes first, formats and defaults after."""

BY_PART = 0.85
BY_LAST_WORD = 0.6
BY_THING = 0.75
"""What a name says by fewer of its last words, by one, and without the `id` or `name` at its end."""

BY_NAME = 0.9
BY_MODIFIER = 0.5
BY_PURPOSE = 0.3
BY_PHRASE = 0.6
BY_WORD = 0.2
"""What is said by a tool's own name, a word before its noun, and by descriptions: of a tool, of a parameter."""

SHOWN = {Effect.ENDS: 0.4, Effect.CHANGES: 0.6}
"""What fields of the results say less by, after what a tool does: they tell what was done."""

PROMISED = {
    Effect.READS: 1.0,
    Effect.CREATES: 0.8,
    Effect.MAKES: 0.8,
    Effect.OTHER: 0.7,
    Effect.CHANGES: 0.4,
    Effect.ENDS: 0.2,
}
"""How surely a tool yields what its name is about."""

BESIDE_FIELDS = 0.7
"""Of what a name promises where fields are known that do not show it."""

OPTIONAL = 0.85
SAME_AS_TAKEN = 0.3
"""Of a concept that a tool itself takes: its results only say again what it was asked about."""

SCALARS = frozenset({"string", "integer", "number", "boolean"})

IDENTIFIERS = "id name number uuid guid slug code key sku handle path uri url"
"""Last words of names for one thing: `issue_id`, `issue_number` and `issue` are about an issue."""

GENERIC = """
action all amount any api arg args array base body bool boolean code color config content contents count cursor data
date day default desc description destination detail details dict direction display end enable error field
fields filter first flag format from full head hour id ids index info information input integer items json key kind
language last latest length level limit line list locale max maximum metadata method min minimum minute mode month
name names new next null number object of offset ok old one option options output params parameter path paths
per point position prefix prev priority query raw reason ref request response result results root row s score search
second set size sort start state status step str string success suffix summary system target text time
timestamp title to token total true type unit units update url uri use uuid value values version week
width year zone
"""
"""Words that by themselves do not say what a value is of."""

OPTIONS = "by count cursor field format lang language limit locale max min offset order page size sort timezone verbose"
OPTION_BEGINS = "dry exclude include max min per sort"
"""Last and first words of parameters that say how, not what."""

JOINTS = "and as at based by for from given in into of on onto or per that through to under using via with"
PREAMBLE = "a all an available current every its list my new single specific the this"
FUNCTION_WORDS = "are be can e g i if is it not or what when where which who will you your"


@dataclass(frozen=True, slots=True)
class LinkedTool:
    """What links are made of: names, text, the schema of the parameters, and of the results where one is known."""

    key: str
    server: str
    name: str
    description: str
    inputs: JsonObject
    output: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A field or a parameter: its path, its type as far as it has one, and the concepts it may be, by how surely.

    Paths of fields are JMESPath behind a reference (`.issues[*].id`), `@` for the result itself, and empty where only
    the name tells what comes; those of parameters are names with dots.
    """

    path: str
    kind: str
    concepts: Mapping[str, float]
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of links at one tool."""

    key: str
    server: str
    name: str
    verb: str
    effect: Effect
    noun: tuple[str, ...]
    yields: tuple[Place, ...]
    needs: tuple[Place, ...]
    words: frozenset[str]
    """Words of its descriptions that may be names of tools."""


def ends_of(tool: LinkedTool) -> Ends:
    """What a tool yields and needs."""
    verb, noun = _verb_and_noun(tool.name, tool.server)
    effect = EFFECTS.get(verb, Effect.OTHER)
    needs = tuple(islice(_needs(tool, noun), MAX_NEEDS))
    texts = [tool.description, *(str(schema.get("description") or "") for _, schema, _ in _parameters(tool.inputs))]
    words = frozenset(word for text in texts for word in NAMES.findall(text))
    fields = tuple(_fields_yielded(tool, effect, noun))
    yields = (*fields, _yielded_by_name(tool, verb, effect, noun, _only_value(tool.output, fields, effect)))
    return Ends(tool.key, tool.server, tool.name, verb, effect, noun, yields, needs, words)


def first_stem(name: str) -> tuple[str, ...]:
    """What a name begins with, if anything."""
    return stems(name)[:1]


def telling_word(noun: Sequence[str], idle: Collection[str]) -> str:
    """The last word of a noun that says what it is, and is none of the idle ones."""
    return next((word for word in reversed(noun) if word not in _GENERIC and word not in idle), "")


def _fields_yielded(tool: LinkedTool, effect: Effect, noun: tuple[str, ...]) -> Iterator[Place]:
    if tool.output is None:
        return
    taken = {squash(name) for name in properties_of(tool.inputs)}
    sure = SHOWN.get(effect, 1.0)
    for path, kind, name, context in islice(_fields(tool.output), MAX_FIELDS):
        worth = sure * (SAME_AS_TAKEN if squash(name) in taken else 1.0)
        words, concepts = stems(name), _Concepts()
        concepts.add_name(words, worth)
        for around in filter(None, (context, noun)):
            concepts.add((*around[-2:], *words), worth)
            concepts.add((around[-1], *words), worth)
            if len(words) == 1 and words[0] in _IDENTIFIERS:
                concepts.add(around[-1:], worth * BY_PART)
        yield Place(path, kind, concepts)


def _only_value(output: JsonObject | None, fields: Sequence[Place], effect: Effect) -> Place:
    """Where the results are one value, that value: it is what the tool is about.

    The text that tools answer which do not ask for anything mostly says that it is done.
    """
    if output is not None and not fields and (effect in (Effect.READS, Effect.OTHER) or kind_of(output) != "string"):
        kind = kind_of(output)
        items = output.get("items")
        inner = kind_of(items) if isinstance(items, dict) else ""
        if kind in SCALARS or (kind == "array" and inner in SCALARS):
            return Place("@" if kind in SCALARS else "@[*]", inner or kind, {})
    plain = [field for field in fields if field.kind in SCALARS]
    return plain[0] if len(plain) == 1 == len(fields) else Place("", "", {})


def _yielded_by_name(tool: LinkedTool, verb: str, effect: Effect, noun: tuple[str, ...], value: Place) -> Place:
    """What the name and the description promise, and where that is if the results are one value."""
    sure = PROMISED[effect] * (1.0 if tool.output is None or value.path else BESIDE_FIELDS)
    concepts = _Concepts()
    concepts.add_name(noun, sure * BY_NAME)
    for word in noun[:-1] if set(noun) - _GENERIC else stems(split_words(tool.server)):
        concepts.add((word,), sure * BY_MODIFIER)
    if effect in (Effect.CREATES, Effect.MAKES):
        for thing in {*noun[-1:], *stems(verb)}:
            concepts.add((thing, "id"), sure)
    concepts.add_text(tool.description, sure * BY_PURPOSE, sure * BY_PURPOSE)
    for name in properties_of(tool.inputs):
        words = stems(name)
        for taken in {" ".join(words), " ".join(words[:-1]) if words and words[-1] in _IDENTIFIERS else ""}:
            if taken in concepts:
                concepts[taken] *= SAME_AS_TAKEN
    return Place(value.path, value.kind, concepts)


def _needs(tool: LinkedTool, noun: tuple[str, ...]) -> Iterator[Place]:
    for path, schema, is_required in _parameters(tool.inputs):
        words = stems(path.rpartition(".")[2])
        if schema.get("type") == "boolean" or "enum" in schema or "const" in schema:
            continue
        if not words or words[-1] in _OPTIONS or words[0] in _OPTION_BEGINS:
            continue
        sure = 1.0 if is_required or not tool.inputs.get("required") else OPTIONAL
        concepts = _Concepts()
        concepts.add_name(words, sure)
        if words[-1] in _IDENTIFIERS:
            concepts.add_name(words[:-1], sure * BY_THING)
        if noun and not set(words) - _GENERIC:
            concepts.add((noun[-1], *words), sure * BY_PART)
            if words[-1] in _IDENTIFIERS:
                concepts.add(noun[-1:], sure * BY_MODIFIER)
        concepts.add_text(str(schema.get("description") or ""), sure * BY_PHRASE, sure * BY_WORD)
        yield Place(path, kind_of(schema), concepts, is_required)


class _Concepts(dict[str, float]):
    """Concepts by how surely they are meant; what is generic is none."""

    def add(self, words: Sequence[str], sure: float) -> None:
        """One concept, unless its words say nothing."""
        if set(words) - _GENERIC:
            concept = " ".join(words)
            self[concept] = max(sure, self.get(concept, 0.0))

    def add_name(self, words: Sequence[str], sure: float) -> None:
        """A name and the ends of it: `origin sky id` is a `sky id` as well."""
        words = words[-4:]
        for start in range(len(words)):
            left = len(words) - start
            self.add(words[start:], sure * (1.0 if start == 0 else BY_PART if left > 1 else BY_LAST_WORD))

    def add_text(self, text: str, pair: float, word: float) -> None:
        """The words of a text, and pairs of neighbours between which no function word stands.

        What a text begins with is what it is about: `email address of the customer` is an `email`.
        """
        before, is_first = "", True
        for stem in stems(text[:DESCRIBED]):
            if stem in _FUNCTION_WORDS:
                is_first = is_first and not before
                before = ""
                continue
            self.add((stem,), pair if is_first else word)
            if before:
                self.add((before, stem), pair)
            before = stem


def _fields(schema: JsonObject) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(path, type, name, words of what it is a field of) of what an output holds, from its root on."""
    definitions = schema.get("$defs") or schema.get("definitions") or {}
    pending: list[tuple[str, str, tuple[str, ...], object, int]] = [("", "", (), schema, 0)]
    for path, name, context, given, depth in pending:
        found = _resolved(given, definitions)
        if name:
            yield path, kind_of(found), name, context
        if depth >= MAX_DEPTH or len(pending) > MAX_FIELDS:
            continue
        inner = (stems(name) if name else ()) or context
        for field, member in properties_of(found).items():
            pending.append((f"{path}.{as_field(field)}", field, inner, member, depth + 1))
        for keyword, sign in (("items", "[*]"), ("additionalProperties", ".*")):
            member = _resolved(found.get(keyword), definitions)
            if member:
                pending.append((path + sign, "", inner, member, depth + 1))


def _resolved(schema: object, definitions: JsonObject) -> JsonObject:
    """A schema, or what it refers to in the same document, or the first of what it may be that is not null."""
    for _ in range(4):
        if not isinstance(schema, dict):
            break
        choices = next(
            (schema[word] for word in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(word), list)), None
        )
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = definitions.get(reference.rpartition("/")[2])
        elif choices:
            schema = next((each for each in choices if isinstance(each, dict) and each.get("type") != "null"), None)
        else:
            return schema
    return {}


def _parameters(schema: JsonObject) -> Iterator[tuple[str, JsonObject, bool]]:
    """(names with dots, schema, whether it is required) of the parameters and of what objects in them hold."""
    definitions = schema.get("$defs") or schema.get("definitions") or {}
    pending: list[tuple[str, JsonObject, bool, int]] = [("", schema, True, 0)]
    for path, given, is_required, depth in pending:
        required = given.get("required")
        names = required if isinstance(required, list) else ()
        for name, member in properties_of(given).items():
            found = _resolved(member, definitions)
            inner = f"{path}.{name}".removeprefix(".")
            yield inner, found, is_required and name in names
            held = _resolved(found.get("items"), definitions) or found
            if depth < PARAMETER_DEPTH and properties_of(held):
                pending.append((inner, held, is_required and name in names, depth + 1))


def properties_of(schema: JsonObject) -> dict[str, JsonObject]:
    """The properties of a schema that are schemas themselves."""
    properties = schema.get("properties")
    members = properties.items() if isinstance(properties, dict) else ()
    return {str(name): each for name, each in members if isinstance(each, dict)}


def kind_of(schema: JsonObject) -> str:
    """The type of a schema's values, the first one that is not null; empty where it says none."""
    kind: Any = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "")
    named = kind.casefold() if isinstance(kind, str) else ""
    return {"float": "number", "int": "integer"}.get(named, named)


def _verb_and_noun(name: str, server: str) -> tuple[str, tuple[str, ...]]:
    """`get_issue_comments_by_id` is about `issue comment`; words of the server's own name at the start do not count."""
    words = split_words(name).casefold().split()
    for word in split_words(server).casefold().split():
        if words[1:] and words[0] == word:
            words = words[1:]
    at = next((at for at, word in enumerate(words[:3]) if word in EFFECTS), None)
    verb = "" if at is None else words[at]
    behind = words if at is None else words[at + 1 :] or words[:at]
    noun: list[str] = []
    for word in behind:
        if word in _JOINTS and noun:
            break
        if word not in _JOINTS and word not in _PREAMBLE:
            noun.append(word)
    return verb, stems(" ".join(noun))


NAMES = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)+|[a-z]+(?:[A-Z][a-z0-9]+)+")
"""Words that are written as names of tools are."""

_JOINTS, _PREAMBLE = frozenset(JOINTS.split()), frozenset(PREAMBLE.split())
_TOKENS = re.compile(r"[^\W_]+")


@lru_cache(maxsize=32_768)
def stems(text: str) -> tuple[str, ...]:
    """The words of an identifier or a text in their order, in the singular and without `ing`."""
    return tuple(map(_stem, _TOKENS.findall(split_words(text).casefold())))


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        word = word[:-1]
    return word[:-3] if word.endswith("ing") and len(word) > 6 else word


_GENERIC = frozenset(stems(GENERIC))
_IDENTIFIERS = frozenset(stems(IDENTIFIERS))
_OPTIONS, _OPTION_BEGINS = frozenset(stems(OPTIONS)), frozenset(stems(OPTION_BEGINS))
_FUNCTION_WORDS = frozenset(stems(FUNCTION_WORDS)) | _JOINTS | _PREAMBLE | frozenset(map(_stem, EFFECTS))
