"""Templates: arguments with references to steps, filled with the results of those steps."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.pointers import escaped
from pml_gateway.errors import InvalidInputError
from pml_gateway.results.functions import FUNCTIONS
from pml_gateway.results.paths import shown
from pml_gateway.results.references import check_no_handle, checked, is_reference
from pml_gateway.results.syntax import ROOT
from pml_gateway.text import word_set, words_of
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression, with_dollars
from pml_gateway.workflow.placeholders import (
    MAX_REFERENCE,
    Placeholder,
    is_of_any_step,
    placeholders,
    spelled,
    without_escapes,
)

MAX_DEPTH = 100

MAX_TOLD = 12
"""Maximum number of steps in a hint."""

MAX_BATCH_DEPTH = 2
"""Maximum depth at which a text in a batch is searched for steps that are no calls of it."""

_CODE = word_set(
    """
    query pattern regex regexp search find needle html xml markup code source snippet template old new replacement
    replace selector expression command cmd args script sql css xpath jsonpath jq filter formula tag element field
    column variable pipeline group sort projection env
    """
)
"""Words of arguments in whose languages `$a.b` and `{{a.b}}` have a meaning of their own."""

_BEGIN = re.compile(r"\$\$|\$(?P<step>\d+|[A-Za-z_][A-Za-z0-9_-]*)(?=\.[A-Za-z_\"]|\[|\Z)")
_NAME = re.compile(r"\.(?:[A-Za-z_][A-Za-z0-9_]*|\*)")
_QUOTED_NAME = re.compile(r'\."(?:[^"\\]|\\.)*"')
_ALONE = re.compile(r"\$(?P<step>[A-Za-z_][A-Za-z0-9_-]*)(?=\s)")
_CALL = re.compile(r"([a-z_]+)(?=\()")
_ANY_ROOT = re.compile(r"(?<!\$)(?:\$\$)*" + ROOT.pattern)
_SELECTION = re.compile(r"\.(?=[\[{])")
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_OPERATORS = ("||", "&&", "==", "!=")
"""Operators after a reference, with which a text can only be meant as an expression."""

_NAME_BEGUN = re.compile(r"[-(!\s]*([A-Za-z_][\w-]*)", re.ASCII)
_OPERATOR = re.compile(r"[(+*/|&=<>!]|\s-\s|\[\?")
_PATH_OF_ROOT = re.compile(ROOT.pattern + r"[.\[]")
_CALCULATION = re.compile(
    r"""[\w)\]"']\s*\*\s*[\w$(]|\s[+/]\s|\+\s*[\d(]|(?:\)|(?<![\w$.])\d[\d.]*)\s*\+|\s-\s+[\d(]|[\d)]\s+-\s"""
)
"""An operator that joins no names, as it does in `$a.title - $b.title`, `$a.owner/$a.repo` and `$a.year-12`."""

NO_NAMES: frozenset[str] = frozenset()

LoadStored = Callable[[JsonObject], Awaitable[Any]]
"""A function that returns the stored value of a `{"$ref": ...}` node."""


@dataclass(frozen=True, slots=True)
class StepReference:
    """An expression that begins with the result of an earlier step, as written."""

    expression: Expression

    @property
    def text(self) -> str:
        """Return the reference as written."""
        return self.expression.text

    @property
    def root(self) -> str:
        """Return the step that it begins with, by index or id."""
        match = ROOT.match(self.text)
        return match[1] if match else ""

    @property
    def roots(self) -> frozenset[str]:
        """Return all steps that it reads."""
        return self.expression.roots


@dataclass(frozen=True, slots=True)
class Text:
    """A text with references in it, whose values are inserted as text."""

    parts: tuple[str | StepReference, ...]


@dataclass(frozen=True, slots=True)
class StoredReference:
    """A `{"$ref": ...}` node, replaced by a stored result, which is not scanned for references."""

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


Template = StepReference | Text | StoredReference | LiteralTemplate | Items | Fields


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader that compiles JSON values into templates.

    Args:
        names: the existing roots: steps by index and id, and others.
        reads_steps: whether texts may refer to them; if not, as in a batch, every text is literal.
        numbers: the arguments that are numbers, where a text that calculates is an expression.
        earlier: the ids of the steps before this one, in order.
    """

    names: frozenset[str] = NO_NAMES
    reads_steps: bool = True
    numbers: frozenset[str] = NO_NAMES
    earlier: Sequence[str] = ()

    def template(self, value: Any, depth: int = 0, key: str = "", argument: str = "") -> Template:
        """Return the template of a value: `"$step.path"` is a reference, `$$` a dollar sign, the rest is literal.

        Raises:
            InvalidInputError: a reference is not JMESPath or has other keys, a text only looks like a reference, or
                the nesting is too deep.
        """
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"the arguments are nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, str):
            check_no_handle(value, key)
            is_number = depth == 1 and key in self.numbers and self.reads_steps
            return (self._number(value) if is_number else None) or self._text(value, argument, depth)
        if isinstance(value, list):
            items = tuple(self._member(item, depth + 1, str(index), argument) for index, item in enumerate(value))
            if all(isinstance(item, LiteralTemplate) for item in items):
                return LiteralTemplate([item.value for item in items if isinstance(item, LiteralTemplate)])
            return Items(items)
        if not isinstance(value, dict):
            return LiteralTemplate(value)
        if is_reference(value):
            checked(value)
            return StoredReference(value)
        fields = tuple((name, self._member(item, depth + 1, name, name)) for name, item in value.items())
        if all(isinstance(item, LiteralTemplate) for _, item in fields):
            return LiteralTemplate({name: item.value for name, item in fields if isinstance(item, LiteralTemplate)})
        return Fields(fields)

    def _member(self, value: Any, depth: int, key: str, argument: str) -> Template:
        """Return the template of a member; errors have its place in `details["pointer"]`."""
        try:
            return self.template(value, depth, key, argument)
        except InvalidInputError as error:
            error.details["pointer"] = f"/{escaped(key)}{error.details.get('pointer', '')}"
            raise

    def _number(self, text: str) -> Template | None:
        """Return the expression over steps that a text in the place of a number can only be."""
        marked = with_dollars(text, self.names)
        if _ANY_ROOT.search(marked) is None:
            return None
        try:
            expression = Expression(marked)
        except InvalidInputError:
            return None
        is_whole = expression.roots <= self.names and expression.roots and not expression.fields
        return StepReference(expression) if is_whole else None

    def _text(self, text: str, argument: str, depth: int) -> Template:
        if not self.reads_steps:
            self._check_other_slots(text, argument, depth)
            return LiteralTemplate(text)
        found = list(placeholders(text, self.names, argument=argument, earlier=self.earlier)) or self._unmarked(text)
        meant = [each for each in found if not each.is_escaped]
        if meant:
            raise InvalidInputError(
                f"{shown(text[meant[0].start : meant[0].end])} looks like a reference, and is text here",
                hint=f"{self._spelled(text, meant)}; a backslash before it makes it text, and $$ is a dollar sign",
            )
        is_code = not _CODE.isdisjoint(words_of(argument))
        return _text_template(without_escapes(text, found), self.names, is_code=is_code)

    def _spelled(self, text: str, found: Sequence[Placeholder]) -> str:
        """Return what to write instead, or else the steps of which one is meant."""
        if all(each.reference for each in found):
            return spelled(text, found)
        steps = ", ".join(f"${name}" for name in self.earlier[-MAX_TOLD:])
        known = f"name a step before this one: {steps}" if steps else "no step is before this one"
        return "; ".join(part for part in (spelled(text, found), known) if part)

    def _unmarked(self, text: str) -> list[Placeholder]:
        """Return the expression over steps that a text is as a whole, without `$` before their names."""
        plain = text.lstrip("\\").strip()
        if "$" in text or len(text) > MAX_REFERENCE or _OPERATOR.search(plain) is None:
            return []
        begun = _NAME_BEGUN.match(plain)
        if begun is None or not (begun[1] in self.names or begun[1] in FUNCTIONS):
            return []
        try:
            marked = with_dollars(plain, self.names)
            expression = Expression(marked) if marked != plain else None
        except InvalidInputError:
            return []
        if expression is None or expression.fields or not (_CALL.match(plain) or _PATH_OF_ROOT.search(marked)):
            return []
        if expression.calculates:
            marked = f"{marked} | @"
        elif not expression.joins_values and " | " in marked:
            # A filter of another system, as in `a.title | upper`.
            marked = marked.partition(" | ")[0]
        return [Placeholder(0, len(text), marked, text[0] == "\\")]

    def _check_other_slots(self, text: str, argument: str, depth: int) -> None:
        """Refuse a text that can only mean the result of another slot; `$1` alone may be a placeholder in a query."""
        begin = _BEGIN.match(text)
        root = begin["step"] if begin is not None else None
        refers = root in self.names and begin is not None and begin.end() < len(text) == _end_of_path(text, begin.end())
        # Deeper in, `$user.name` is a field in the language of a database.
        is_free = depth > MAX_BATCH_DEPTH or not _CODE.isdisjoint(words_of(argument))
        refers = refers or (not is_free and is_of_any_step(text.strip()))
        if refers or any(placeholders(text, self.names, with_path=True, argument=argument)):
            raise InvalidInputError(
                f"{shown(text)} looks like the result of another call, and the calls of a batch do not see each other",
                hint="execute_workflow runs steps that use each other's results; a single call takes this very text",
            )


def compile_template(
    value: Any,
    *,
    names: frozenset[str] = NO_NAMES,
    reads_steps: bool = True,
    numbers: frozenset[str] = NO_NAMES,
    earlier: Sequence[str] = (),
) -> Template:
    """Return the template of a value; see `Reader`."""
    return Reader(names, reads_steps, numbers, earlier).template(value)


def references(template: Template, pointer: str = "") -> Iterator[tuple[str, StepReference | StoredReference]]:
    """Yield every reference in a template with its JSON pointer."""
    match template:
        case StepReference() | StoredReference():
            yield pointer, template
        case Text(parts):
            yield from ((pointer, part) for part in parts if isinstance(part, StepReference))
        case Items(items):
            for index, item in enumerate(items):
                yield from references(item, f"{pointer}/{index}")
        case Fields(fields):
            for key, item in fields:
                yield from references(item, f"{pointer}/{escaped(key)}")
        case LiteralTemplate():
            return


def roots_of(template: Template | None) -> frozenset[str]:
    """Return the roots that a template refers to: steps by index or id, and roots that are not steps."""
    parts = references(template) if template is not None else ()
    return frozenset(root for _, part in parts if isinstance(part, StepReference) for root in part.roots)


def needed_roots(template: Template | None) -> frozenset[str]:
    """Return the roots without which there is no value, unlike alternatives such as `$a.x || $b.x`."""
    parts = references(template) if template is not None else ()
    return frozenset(root for _, part in parts if isinstance(part, StepReference) for root in part.expression.needed)


async def render(
    template: Template,
    roots: Mapping[str, Any],
    load: LoadStored,
    *,
    absent: frozenset[str] = frozenset(),
    may_be_null: bool = True,
) -> Any:
    """Return the value of a template.

    Args:
        template: the template to fill in.
        roots: the value of every step, by index and by id.
        load: fetches stored results.
        absent: roots that have no result; their paths are null.
        may_be_null: whether an expression with absent roots may be null as a whole.

    Raises:
        InvalidInputError: a path that leads nowhere; what `load` raises.
    """

    async def value_of(reference: StepReference) -> Any:
        is_known = not reference.roots & absent
        # JMESPath makes no list or object of null.
        value = await reference.expression.evaluate(roots, {}, known=is_known)
        if value is None and not is_known and not may_be_null:
            raise InvalidInputError(f"{shown(reference.text)}: none of its steps has a result")
        return value

    match template:
        case LiteralTemplate(value):
            return value
        case StepReference():
            return await value_of(template)
        case Text(parts):
            return "".join([part if isinstance(part, str) else _as_text(await value_of(part)) for part in parts])
        case StoredReference(node):
            return await load(node)
        case Items(items):
            return [await render(item, roots, load, absent=absent, may_be_null=may_be_null) for item in items]
        case Fields(fields):
            values = [
                (key, item, await render(item, roots, load, absent=absent, may_be_null=may_be_null))
                for key, item in fields
            ]
            return {key: value for key, item, value in values if value is not None or not _is_input(item)}


def _is_input(template: Template) -> bool:
    """Return True if this is one argument of a composite tool; it is left out if it was not given."""
    return isinstance(template, StepReference) and template.root == "input"


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text_template(text: str, names: Container[str] = NO_NAMES, *, is_code: bool = False) -> Template:
    """Return the template of a text; `names` are the roots with which `$name || ...` can only be an expression.

    If it is code, such as an expression for a calculator, its server calculates: `2 * $a.n`.
    """
    if "$" not in text:
        return LiteralTemplate(text)
    alone = _ALONE.match(text)
    is_root = alone is not None and alone["step"] in names
    whole = _whole_expression(text, alone) if alone is not None and is_root else _whole_call(text)
    if whole is None and not is_code:
        whole = _whole_calculation(text, names)
    if whole is not None:
        return StepReference(whole)
    parts: list[str | StepReference] = []
    literal, at = "", 0
    while (found := _BEGIN.search(text, at)) is not None:
        literal += text[at : found.start()]
        if found["step"] is None:
            literal += "$"
            at = found.end()
            continue
        if found.start() == 0 and (whole := _whole_expression(text, found)) is not None:
            return StepReference(whole)
        if literal.strip() == "||" and parts:
            raise _unclear(text)
        at = _end_of_path(text, found.end())
        parts += [literal] if literal else []
        parts.append(StepReference(Expression(text[found.start() : at])))
        literal = ""
    literal += text[at:]
    if not parts:
        return LiteralTemplate(literal)
    return Text((*parts, literal) if literal else tuple(parts))


def _whole_expression(text: str, first: re.Match[str]) -> Expression | None:
    """Return the text as one expression that begins with `first`; None if it is a text with references.

    It is an expression if all of it is a path, or if it is JMESPath without ambiguity:
    every name belongs to a step, to an item or to the part before it.

    Raises:
        InvalidInputError: it can only be an expression, but is not a valid one.
    """
    at = first.end()
    end = _end_of_path(text, at)
    if end == len(text) or (_SELECTION.match(text, end) and _is_path(text, end)):
        return Expression(text)
    rest = text[end:].strip()
    if not rest:
        return None
    try:
        expression = Expression(text)
    except InvalidInputError as error:
        if rest.startswith(_OPERATORS):
            raise _unclear(text, error) from None
        return None
    if expression.joins_values and not expression.fields:
        return expression
    if rest.startswith(_OPERATORS):
        raise _unclear(text)
    return None


def _whole_calculation(text: str, names: Container[str]) -> Expression | None:
    """Return the text as one expression with arithmetic; None if it is a text with references.

    Raises:
        InvalidInputError: it could be both.
    """
    if _CALCULATION.search(text) is None:
        return None
    try:
        expression = Expression(text)
    except InvalidInputError:
        return None
    is_known = bool(expression.roots) and all(root in names for root in expression.roots)
    if not is_known or expression.fields or not expression.operators:
        return None
    if expression.calculates:
        raise InvalidInputError(
            f"{shown(text)} could be a calculation or a text",
            hint=f"""write "{text} | @" to calculate, and a text as $a.n | join('', [to_string(@), ' + 1'])""",
        )
    return expression if expression.joins_values else None


def _whole_call(text: str) -> Expression | None:
    """Return the text as the call of a function with a path into its value; None if it is something else."""
    name = _CALL.match(text)
    if name is None or name[1] not in FUNCTIONS or not _is_path(text, name.end()) or not _ANY_ROOT.search(text):
        return None
    try:
        expression = Expression(text)
    except InvalidInputError as error:
        raise _unclear(text, error) from None
    if expression.fields:
        raise _unclear(text)
    return expression if expression.roots else None


def _is_path(text: str, at: int) -> bool:
    """Return True if the rest is a path, or the arguments of a call and a path."""
    try:
        at = _after_bracket(text, at) if text[at] == "(" else at
        return _end_of_path(text, at, selects=True) == len(text)
    except InvalidInputError:
        return False


def _unclear(text: str, error: InvalidInputError | None = None) -> InvalidInputError:
    why, remedy = (
        (f"; {error.message}", error.hint) if error is not None else ("", "texts in it stand in single quotes")
    )
    return InvalidInputError(
        f"{shown(text)} could be an expression or a text{why}",
        hint=f"write an expression as $a.x || 'none' ({remedy}), "
        "and a text with values in it as $a.x | join('', [to_string(@), ' || ', to_string($b.x)])",
    )


def _end_of_path(text: str, at: int, *, selects: bool = False) -> int:
    """Return the end of the path at `at`: names, quoted names, calls, brackets, and `.{...}` if it `selects`."""
    while at < len(text):
        if text[at] == "[":
            at = _after_bracket(text, at)
            continue
        if selects and _SELECTION.match(text, at):
            at = _after_bracket(text, at + 1)
            continue
        step = _NAME.match(text, at) or _QUOTED_NAME.match(text, at)
        if step is None:
            return at
        at = step.end()
        if text.startswith("(", at):
            at = _after_bracket(text, at)
    return at


def _after_bracket(text: str, at: int) -> int:
    """Return the position after the bracket that opens at `at`; quoted text inside it may contain any bracket."""
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
