"""What flows from step to step, as far as schemas tell before anything is called: what cannot work, what is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped
from pml_gateway.results.learning import Output, inner_output
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.inference import Inference
from pml_gateway.workflow.kinds import (
    ANYTHING,
    INTEGER,
    STRING,
    Kind,
    Type,
    declared,
    declared_output,
    either,
    learned,
    list_of,
    mismatches,
    record_of,
    type_of,
)
from pml_gateway.workflow.plan import INDEX, INPUT, ITEM, OnError, Plan, Step, StepProblem
from pml_gateway.workflow.templates import Fields, Items, LiteralTemplate, StepReference, Stored, Template, Text

MAX_EXPRESSIONS = 1000
"""Of one plan that are followed; every one takes a fraction of a millisecond."""

MAX_UNKNOWN = 8
"""Of one step that are told."""

_WRAPPER = re.compile(
    r"(?<=\w)\.(?:results?|outputs?|data|json|body|value|response|structuredContent|content)\b(?=[.\[])"
)
"""What other systems put between a step and the fields of its result."""

MAX_TEXT = 400
"""Characters of a text in a call that is shown."""

OutputOf = Callable[[CatalogTool], Output | None]
"""What is known of the results of a tool that declares nothing of them."""


@dataclass(slots=True)
class Flow:
    """What was found: problems, what is not known of each step, and its arguments as far as they are."""

    problems: list[StepProblem] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, JsonObject] = field(default_factory=dict)


def given_type(schema: JsonObject) -> Type:
    """What `$input` is in a composite tool with this input schema: what is not given is null.

    That every argument it reads is named in it is found out by itself.
    """
    taken = declared(schema)
    fields = {
        name: each if name in taken.required or "default" in schema["properties"][name] else each.or_null()
        for name, each in taken.fields.items()
    }
    kinds, others = frozenset({Kind.OBJECT}), taken.others or ANYTHING
    return replace(taken, fields=fields, required=frozenset(fields), kinds=kinds, others=others)


def follow(
    plan: Plan,
    tools: Mapping[int, CatalogTool],
    output_of: OutputOf,
    *,
    given: Type = ANYTHING,
    output: Template | None = None,
) -> Flow:
    """What flows through a plan; takes milliseconds for a long one: call it in a thread.

    Args:
        plan: whose steps refer to earlier ones only.
        tools: the tools of steps by position, where they are known.
        output_of: what is known of a tool's results.
        given: what `$input` is.
        output: what a composite tool answers.
    """
    return _Follower(plan, tools, output_of, given).follow(output)


class _Follower:
    def __init__(self, plan: Plan, tools: Mapping[int, CatalogTool], output_of: OutputOf, given: Type) -> None:
        self._plan = plan
        self._tools = tools
        self._output_of = output_of
        self._flow = Flow()
        self._roots: dict[str, Type] = {INPUT: given}
        self._types: dict[Expression, Type] = {}
        self._wanted: dict[CatalogTool, Type] = {}
        self._outputs: dict[CatalogTool, Type] = {}
        self._read = frozenset[int]().union(*(step.after for step in plan.steps))
        self._left = MAX_EXPRESSIONS
        self._is_lenient = plan.on_error is OnError.CONTINUE_ALL
        self._at = ""

    def follow(self, output: Template | None) -> Flow:
        if output is not None:
            self._read |= {step.index for step in self._plan.steps}
        for step in self._plan.steps:
            self._at = step.id
            made = self._step(step)
            if self._is_lenient:
                made = made.or_null()
            self._roots |= {str(step.index): made, step.id: made}
        if output is not None:
            self._at = ""
            self._fill(output, ANYTHING, "/output", self._roots)
        return self._flow

    def _step(self, step: Step) -> Type:
        """What a step yields."""
        at = f"/steps/{step.index}"
        if step.when is not None:
            self._infer(step.when, f"{at}/when", self._may_be_skipped(step), self._before(step), optional=True)
        roots = dict(self._roots)
        if step.for_each is not None:
            roots |= {ITEM: self._item(step.for_each, f"{at}/for_each"), INDEX: INTEGER}
        if step.transform is not None:
            made = self._transform(step, at, roots)
        elif step.tool is None:
            made = ANYTHING
        else:
            made = self._call(step, at, roots)
        return list_of(made) if step.for_each is not None else made

    def _call(self, step: Step, at: str, roots: Mapping[str, Type]) -> Type:
        tool = self._tools.get(step.index)
        if not isinstance(step.arguments, LiteralTemplate):
            self._fill(step.arguments, self._wanted_by(tool), f"{at}/arguments", roots)
        arguments = self._shown(step.arguments)
        self._flow.calls[step.id] = arguments if isinstance(arguments, dict) else {}
        return self._output(tool) if tool is not None and step.index in self._read else ANYTHING

    def _wanted_by(self, tool: CatalogTool | None) -> Type:
        """What a tool takes."""
        if tool is None:
            return ANYTHING
        if tool not in self._wanted:
            self._wanted[tool] = declared(tool.input_schema)
        return self._wanted[tool]

    def _output(self, tool: CatalogTool) -> Type:
        """What references read of a tool's result."""
        if tool not in self._outputs:
            schema = tool.definition.get("outputSchema")
            found = None if isinstance(schema, dict) else self._output_of(tool)
            known = ANYTHING if found is None else learned(found.schema)
            self._outputs[tool] = declared_output(schema, inner_output(tool)) if isinstance(schema, dict) else known
        return self._outputs[tool]

    def _transform(self, step: Step, at: str, roots: Mapping[str, Type]) -> Type:
        if step.transform is None:
            return ANYTHING
        roots = {**roots, **self._may_be_skipped(step)}
        current = self._before(step)
        if step.input is not None:
            current = self._fill(step.input, ANYTHING, f"{at}/input", roots)
        return self._infer(step.transform, f"{at}/transform", roots, current, optional=self._is_lenient) or ANYTHING

    def _may_be_skipped(self, step: Step) -> dict[str, Type]:
        """The roots for what runs also where a step that it reads was left out by its condition."""
        roots = dict(self._roots)
        for before in (self._plan.steps[index] for index in step.after if index < step.index):
            if before.when is not None:
                roots |= {name: roots[name].or_null() for name in (str(before.index), before.id) if name in roots}
        return roots

    def _before(self, step: Step) -> Type:
        """What a path without `$` starts at."""
        names = (self._plan.steps[index].id for index in step.after if index < step.index)
        roots = self._may_be_skipped(step)
        return record_of({name: roots.get(name, ANYTHING) for name in names})

    def _item(self, source: Template, pointer: str) -> Type:
        """What an item of a loop is."""
        found = self._fill(source, ANYTHING, pointer, self._roots)
        if Kind.ARRAY not in found.kinds:
            reason = f"for_each needs a list, and {_written(source)} is {found}"
            self._refuse(pointer, reason, "name the list in it, as in $0.items", is_certain=found.is_sure)
            return ANYTHING
        if found.kinds != {Kind.ARRAY}:
            self._note(f"{_written(source)}: whether it is a list")
        return found.item

    def _fill(self, template: Template, wanted: Type, pointer: str, roots: Mapping[str, Type]) -> Type:
        """The type of a template's value, which is compared with what is wanted in its place."""
        match template:
            case LiteralTemplate(value):
                return type_of(value)
            case Stored():
                return ANYTHING
            case StepReference(expression):
                found = self._infer(expression, pointer, roots, ANYTHING, optional=self._is_lenient)
                if found is None:
                    return ANYTHING
                if template.root == INPUT and pointer.count("/") > 1:
                    # An argument that was not given is left out.
                    found = found.without_null()
                self._compare(expression.text, found, wanted, pointer)
                return found
            case Text(parts):
                for part in parts:
                    if isinstance(part, StepReference):
                        self._infer(part.expression, pointer, roots, ANYTHING, optional=self._is_lenient)
                self._compare(_written(template), STRING, wanted, pointer)
                return STRING
            case Items(items):
                each = [self._fill(item, wanted.item, f"{pointer}/{at}", roots) for at, item in enumerate(items)]
                return list_of(either(each), len(each))
            case Fields(fields):
                return record_of(
                    {
                        name: self._fill(item, wanted.member(name)[0], f"{pointer}/{escaped(name)}", roots)
                        for name, item in fields
                    }
                )

    def _infer(
        self, expression: Expression, pointer: str, roots: Mapping[str, Type], current: Type, *, optional: bool
    ) -> Type | None:
        """What an expression yields; None where it is refused."""
        self._left -= 1
        if self._left < 0:
            self._note(f"{shortened(expression.text, 60)}: one of too many expressions")
            return ANYTHING
        inference = Inference(roots, current, optional)
        found = inference.of(expression)
        self._types[expression] = found
        for fault in inference.faults:
            hint = fault.hint or _without_wrapper(expression, roots, current)
            self._refuse(pointer, f"{shortened(expression.text, 120)}: {fault.reason}", hint)
        for doubt in inference.doubts:
            self._note(f"{shortened(expression.text, 120)}: {doubt}")
        return None if inference.faults else found

    def _compare(self, text: str, found: Type, wanted: Type, pointer: str) -> None:
        for each in mismatches(found, wanted):
            reason = f"{shortened(text, 120)}: {each.reason}"
            self._refuse(pointer, reason, "", is_certain=each.is_certain)

    def _refuse(self, pointer: str, reason: str, hint: str = "", *, is_certain: bool = True) -> None:
        if is_certain:
            self._flow.problems.append(StepProblem(self._at, pointer, reason, hint))
        else:
            self._note(reason)

    def _note(self, reason: str) -> None:
        known = self._flow.unknown.setdefault(self._at, [])
        if reason not in known and len(known) < MAX_UNKNOWN:
            known.append(reason)

    def _shown(self, template: Template) -> Any:
        """A template's value as far as it is known; what is not is described."""
        match template:
            case LiteralTemplate(value):
                return _cut(value)
            case StepReference(expression):
                return self._placeholder(expression)
            case Text(parts):
                return "".join(
                    shortened(part, MAX_TEXT) if isinstance(part, str) else self._placeholder(part.expression)
                    for part in parts
                )
            case Stored(node):
                return {**node}
            case Items(items):
                return [self._shown(item) for item in items]
            case Fields(fields):
                return {name: self._shown(item) for name, item in fields}

    def _placeholder(self, expression: Expression) -> str:
        return f"<{expression.text}: {self._types.get(expression, ANYTHING)}>"


def _without_wrapper(expression: Expression, roots: Mapping[str, Type], current: Type) -> str:
    """The same reference without a field that other systems put around results, where that fits."""
    text = _WRAPPER.sub("", expression.text, count=1)
    if text == expression.text:
        return ""
    inference = Inference(roots, current, optional=False)
    inference.of(Expression(text))
    return "" if inference.faults else f'write "{text}" instead of "{expression.text}"'


def _written(template: Template) -> str:
    match template:
        case StepReference(expression):
            return expression.text
        case Text(parts):
            return "".join(part if isinstance(part, str) else part.expression.text for part in parts)
        case _:
            return "it"


def _cut(value: Any) -> Any:
    """A literal with its long texts cut."""
    match value:
        case str():
            return shortened(value, MAX_TEXT)
        case list():
            return [_cut(each) for each in value]
        case dict():
            return {key: _cut(each) for key, each in value.items()}
        case _:
            return value
