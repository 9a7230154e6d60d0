"""Templates: arguments with references to steps, filled with the results of those steps."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.references import checked, is_reference
from pml_gateway.results.syntax import ROOT
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression

MAX_DEPTH = 100

_BEGIN = re.compile(r"\$\$|\$(?P<step>\d+|[A-Za-z_][A-Za-z0-9_-]*)(?=\.[A-Za-z_\"]|\[|\Z)")
_NAME = re.compile(r"\.(?:[A-Za-z_][A-Za-z0-9_]*|\*)")
_QUOTED_NAME = re.compile(r'\."(?:[^"\\]|\\.)*"')
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class StepReference:
    """A path into the result of an earlier step, as written."""

    expression: Expression

    @property
    def text(self) -> str:
        """The reference as written."""
        return self.expression.text

    @property
    def root(self) -> str:
        """The step, by index or id."""
        match = ROOT.match(self.text)
        return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with references in it, which become text themselves."""

    parts: tuple[str | StepReference, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A `{"$ref": ...}` node, replaced by a stored result; what comes out is not scanned again."""

    node: JsonObject


@dataclass(frozen=True, slots=True)
class LiteralTemplate:
    """A value without any reference."""

    value: Any


@dataclass(frozen=True, slots=True)
class Items:
    """A list with a reference somewhere in it."""

    items: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with a reference somewhere in it."""

    fields: tuple[tuple[str, Template], ...]


Template = StepReference | Text | Stored | LiteralTemplate | Items | Fields

LoadStored = Callable[[JsonObject], Awaitable[Any]]
"""A `{"$ref": ...}` node to the stored value."""


def compile_template(value: Any, *, reads_steps: bool = True, depth: int = 0) -> Template:
    """The template of a JSON value: `"$step.path"` is a reference, `$$` a dollar sign, the rest is literal.

    Without `reads_steps`, as in a batch, every text is literal, and only stored results are put in.

    Raises:
        InvalidInputError: a reference that is no JMESPath or has other keys, or too deep a nesting.
    """
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"the arguments are nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return _text_template(value) if reads_steps else LiteralTemplate(value)
    if isinstance(value, list):
        items = tuple(compile_template(item, reads_steps=reads_steps, depth=depth + 1) for item in value)
        if all(isinstance(item, LiteralTemplate) for item in items):
            return LiteralTemplate([item.value for item in items if isinstance(item, LiteralTemplate)])
        return Items(items)
    if not isinstance(value, dict):
        return LiteralTemplate(value)
    if is_reference(value):
        checked(value)
        return Stored(value)
    fields = tuple(
        (key, compile_template(item, reads_steps=reads_steps, depth=depth + 1)) for key, item in value.items()
    )
    if all(isinstance(item, LiteralTemplate) for _, item in fields):
        return LiteralTemplate({key: item.value for key, item in fields if isinstance(item, LiteralTemplate)})
    return Fields(fields)


def references(template: Template, pointer: str = "") -> Iterator[tuple[str, StepReference | Stored]]:
    """Every reference in a template with its JSON pointer."""
    match template:
        case StepReference() | Stored():
            yield pointer, template
        case Text(parts):
            yield from ((pointer, part) for part in parts if isinstance(part, StepReference))
        case Items(items):
            for index, item in enumerate(items):
                yield from references(item, f"{pointer}/{index}")
        case Fields(fields):
            for key, item in fields:
                yield from references(item, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
        case LiteralTemplate():
            return


def roots_of(template: Template | None) -> frozenset[str]:
    """What the references in a template begin with: steps by index or id, and the roots that are no steps."""
    parts = references(template) if template is not None else ()
    return frozenset(part.root for _, part in parts if isinstance(part, StepReference))


async def render(
    template: Template, roots: Mapping[str, Any], load: LoadStored, *, absent: frozenset[str] = frozenset()
) -> Any:
    """The value of a template.

    Args:
        template: what to fill in.
        roots: the value of every step, by index and by id.
        load: fetches stored results.
        absent: roots that have no result, and whose paths are null.

    Raises:
        InvalidInputError: a path that leads nowhere; what `load` raises.
    """
    match template:
        case LiteralTemplate(value):
            return value
        case StepReference():
            return await template.expression.evaluate(roots, known=template.root not in absent)
        case Text(parts):
            return "".join([await _part(part, roots, absent) for part in parts])
        case Stored(node):
            return await load(node)
        case Items(items):
            return [await render(item, roots, load, absent=absent) for item in items]
        case Fields(fields):
            values = [(key, item, await render(item, roots, load, absent=absent)) for key, item in fields]
            return {key: value for key, item, value in values if value is not None or not _is_input(item)}


def _is_input(template: Template) -> bool:
    """Whether this stands for one argument of a composite tool; one that was not given is left out."""
    return isinstance(template, StepReference) and template.root == "input"


async def _part(part: str | StepReference, roots: Mapping[str, Any], absent: frozenset[str]) -> str:
    if isinstance(part, str):
        return part
    value = await part.expression.evaluate(roots, known=part.root not in absent)
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text_template(text: str) -> Template:
    parts: list[str | StepReference] = []
    literal, at = "", 0
    while (found := _BEGIN.search(text, at)) is not None:
        literal += text[at : found.start()]
        if found["step"] is None:
            literal += "$"
            at = found.end()
            continue
        at = _end_of_path(text, found.end())
        parts += [literal] if literal else []
        parts.append(StepReference(Expression(text[found.start() : at])))
        literal = ""
    literal += text[at:]
    if not parts:
        return LiteralTemplate(literal)
    if len(parts) == 1 and not literal and isinstance(parts[0], StepReference):
        return parts[0]
    return Text((*parts, literal) if literal else tuple(parts))


def _end_of_path(text: str, at: int) -> int:
    """Where the path ends that begins at `at`: names, quoted names, calls and brackets."""
    while at < len(text):
        if text[at] == "[":
            at = _after_bracket(text, at)
            continue
        step = _NAME.match(text, at) or _QUOTED_NAME.match(text, at)
        if step is None:
            return at
        at = step.end()
        if text.startswith("(", at):
            at = _after_bracket(text, at)
    return at


def _after_bracket(text: str, at: int) -> int:
    """The position behind the bracket that opens at `at`; quoted text inside it may hold any bracket."""
    begin, expected, quote = at, [_BRACKETS[text[at]]], ""
    at += 1
    while at < len(text) and expected:
        character = text[at]
        if quote:
            at += character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in _BRACKETS:
            expected.append(_BRACKETS[character])
        elif character == expected[-1]:
            expected.pop()
        at += 1
    if expected:
        raise InvalidInputError(
            f"{text[begin : begin + 60]!r} has no closing bracket",
            hint="write $$ for a dollar sign that is no reference",
        )
    return at
