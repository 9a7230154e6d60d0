"""Composite tools: `workflows:` of the configuration as tools of the catalog, checked against the tools they use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.catalog.build import same_tool
from pml_gateway.catalog.model import Catalog, CatalogTool, UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.problems import plain_message
from pml_gateway.errors import ErrorCode, GatewayError, InvalidInputError
from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.view import View
from pml_gateway.text import did_you_mean, nearest
from pml_gateway.types import Effect, JsonObject, strongest
from pml_gateway.workflow.members import input_problems, result_problems
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import INPUT, Budget, Plan, PlanError, Step, StepProblem, topological_cycle
from pml_gateway.workflow.templates import StepReference, Template, compile_template, references

COMPOSITES = "workflows"
"""The server id under which composite tools appear: `workflows:NAME` in policies, lists and searches."""

ArgumentProblems = Callable[[Step, CatalogTool], list[StepProblem]]
"""A function that checks the arguments of a step against a tool's schema."""


def unfit_tool(step: Step, tool: CatalogTool) -> list[StepProblem]:
    """Return a problem if a tool cannot be called with any arguments, so that a run would always fail there."""
    pointer = f"/steps/{step.index}/tool"
    if tool.stale and tool.upstream_id == COMPOSITES:
        message, hint = f"the workflow {tool.name!r} is unavailable", "its owner sees why with: pml workflow validate"
        return [StepProblem(step.id, pointer, message, hint, ErrorCode.UPSTREAM_UNAVAILABLE)]
    return []


def ownership_of(servers: Iterable[str]) -> Ownership:
    """Return the ownership of names if these servers are configured; workflow names belong to the gateway's owner."""
    known = tuple(servers)
    return Ownership(known, frozenset({COMPOSITES}).difference(known))


class Definition(BaseModel):
    """One entry of `workflows:` as written in the configuration.

    `input` is the JSON schema of the tool's arguments, `steps` are those of `execute_workflow`, where `hidden: true`
    also keeps the step's tool off every list. `output` is any JSON with references, by default the result of the last
    step that ran. Steps have the rights of the client that calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    description: str = Field(min_length=1)
    title: str | None = None
    use_cases: tuple[str, ...] = ()
    input: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    steps: list[dict[str, Any]] = Field(min_length=1)
    on_error: Literal["continue", "continue_all", "stop"] = "stop"
    budget: dict[str, Any] = Field(default_factory=dict)
    output: Any = None
    output_as: Literal["value", "reference"] = "value"
    hidden: bool = False


@dataclass(frozen=True)
class Composite:
    """One composite tool; without a plan, or with problems, it is unavailable."""

    name: str
    definition: Definition | None = None
    plan: Plan | None = None
    output: Template | None = None
    problems: tuple[StepProblem, ...] = ()
    uses: frozenset[str] = frozenset()

    @cached_property
    def hidden_tools(self) -> frozenset[str]:
        """Return the qualified names of the tools that its steps keep off every list."""
        steps = self.plan.steps if self.plan is not None else ()
        return frozenset(step.tool for step in steps if step.hidden and step.tool in self.uses)

    @cached_property
    def written(self) -> str:
        """Return the definition as text, to detect edits."""
        return "" if self.definition is None else self.definition.model_dump_json()

    def listed(self) -> JsonObject | None:
        """Return the tool as an upstream would list it, or None without a definition."""
        if self.definition is None:
            return None
        use_cases = "".join(f"\n- {each}" for each in self.definition.use_cases)
        description = self.definition.description + (f"\n\nUse it to:{use_cases}" if use_cases else "")
        tool: JsonObject = {"name": self.name, "description": description, "inputSchema": self.definition.input}
        return {**tool, "title": self.definition.title} if self.definition.title else tool

    def given(self, arguments: JsonObject) -> JsonObject:
        """Return the value of `$input`: the arguments, with the default or null for those that were not given."""
        schema = self.definition.input if self.definition is not None else {}
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        defaults = {name: each.get("default") if isinstance(each, dict) else None for name, each in known.items()}
        return defaults | arguments


def read_composites(workflows: Mapping[str, Any], limits: Budget) -> dict[str, Composite]:
    """Read every entry with its own problems; a broken entry does not affect the others."""
    return {str(name): _read(str(name), raw, limits) for name, raw in workflows.items()}


def hidden_steps(composites: Mapping[str, Composite]) -> Iterator[str]:
    """Yield the names of tools that steps keep off every list, as they are written."""
    for composite in composites.values():
        for step in composite.plan.steps if composite.plan is not None else ():
            if step.hidden and step.tool is not None:
                yield step.tool


def bind_composites(
    composites: Mapping[str, Composite], catalog: Catalog, argument_problems: ArgumentProblems
) -> dict[str, Composite]:
    """Bind the steps of composites to the tools of a catalog, and add the problems found there."""
    if not composites:
        return {}
    view = View(catalog, LOCAL, (), inside=True)
    bound = {name: _bind(composite, view, argument_problems) for name, composite in composites.items()}
    names = list(bound)
    tools = {catalog.assignments.get((COMPOSITES, name), name): at for at, name in enumerate(names)}
    uses = [frozenset(tools[tool] for tool in bound[name].uses if tool in tools) for name in names]
    while cycle := topological_cycle(uses):
        path = " -> ".join(names[at] for at in (*cycle, cycle[0]))
        for at in cycle:
            problem = StepProblem("", "/steps", f"the workflows {path} call each other", "remove one of these steps")
            bound[names[at]] = replace(bound[names[at]], problems=(*bound[names[at]].problems, problem))
            uses[at] = frozenset()
    return _without_unavailable(bound, [[names[each] for each in sorted(used)] for used in uses])


def _without_unavailable(bound: dict[str, Composite], uses: list[list[str]]) -> dict[str, Composite]:
    """Make composites unavailable that use an unavailable one: their runs could not finish."""
    while True:
        found = [
            (name, used)
            for name, others in zip(bound, uses, strict=True)
            for used in others
            if bound[used].problems and not bound[name].problems
        ]
        for name, used in found:
            problem = StepProblem("", "/steps", f"the workflow {used!r} is unavailable", "put that one right first")
            bound[name] = replace(bound[name], problems=(*bound[name].problems, problem))
        if not found:
            return bound


def composite_listing(composites: Mapping[str, Composite]) -> UpstreamListing | None:
    """Return the composite tools as the listing of one more upstream, or None if there are none."""
    tools = [tool for composite in composites.values() if (tool := composite.listed()) is not None]
    return UpstreamListing(COMPOSITES, tuple(tools)) if tools else None


def with_composites(catalog: Catalog, composites: Mapping[str, Composite], previous: Catalog | None = None) -> Catalog:
    """Return the catalog with unavailable composites marked stale, their effects declared, and internal tools hidden.

    Composites that did not change are taken from the previous catalog.
    """
    hidden = frozenset[str]().union(*(composite.hidden_tools for composite in composites.values()))
    by_tool = {catalog.assignments.get((COMPOSITES, name), name): each for name, each in composites.items()}

    def marked(tool: CatalogTool) -> CatalogTool:
        composite = composites.get(tool.name) if tool.upstream_id == COMPOSITES else None
        if composite is None:
            is_hidden = tool.qualified_name in hidden
            return tool if is_hidden == tool.hidden else replace(tool, hidden=is_hidden)
        is_hidden = tool.qualified_name in hidden or (composite.definition is not None and composite.definition.hidden)
        reach = _reach(composite, by_tool)
        hints = _effect(reach, catalog).hints
        definition = {**tool.definition, "annotations": hints} if hints else tool.definition
        changed = replace(tool, definition=definition, stale=bool(composite.problems), hidden=is_hidden, reach=reach)
        known = None if previous is None else previous.by_name(tool.qualified_name)
        return known if known is not None and same_tool(known, changed) else changed

    return replace(catalog, tools=tuple(marked(tool) for tool in catalog.tools))


def _reach(composite: Composite, by_tool: Mapping[str, Composite]) -> frozenset[str]:
    """Return every tool that a run could call, whatever its conditions, including through other composites."""
    found: set[str] = set()
    pending = [composite]
    while pending:
        new = pending.pop().uses - found
        found |= new
        pending += [by_tool[tool] for tool in new if tool in by_tool]
    return frozenset(found)


def _effect(reach: Iterable[str], catalog: Catalog) -> Effect:
    """Return the most serious effect of the upstream tools that are reached."""
    tools = filter(None, map(catalog.by_name, reach))
    return strongest(tool.effect for tool in tools if tool.upstream_id != COMPOSITES)


def _read(name: str, raw: Any, limits: Budget) -> Composite:
    try:
        definition = Definition.model_validate(raw)
    except ValidationError as error:
        return Composite(name, problems=tuple(_field_problem(fault) for fault in error.errors(include_url=False)))
    request: JsonObject = {"steps": definition.steps, "on_error": definition.on_error, "budget": definition.budget}
    try:
        plan, problems = parse_workflow(request, limits, with_input=True, extra_keys=("hidden",))
        output = None if definition.output is None else compile_template(definition.output, names=_names(plan))
        problems += [*_output_problems(output, plan), *input_problems(definition.input, plan, output)]
    except PlanError as error:
        return Composite(name, definition, problems=error.problems)
    except InvalidInputError as error:
        return Composite(name, definition, problems=(StepProblem("", "/output", error.message, error.hint),))
    return Composite(name, definition, plan, output, tuple(problems))


def _field_problem(fault: Any) -> StepProblem:
    pointer = "".join(f"/{part}" for part in fault["loc"])
    key = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        known = ", ".join(Definition.model_fields)
        hint = did_you_mean(nearest(key, Definition.model_fields)) or f"known: {known}"
        return StepProblem("", pointer, f"unknown key {key!r}", hint)
    return StepProblem("", pointer, f"{key or 'the workflow'}: {plain_message(fault)}")


def _output_problems(output: Template | None, plan: Plan) -> list[StepProblem]:
    known = _names(plan)
    parts = references(output) if output is not None else ()
    return [
        StepProblem("", f"/output{pointer}", f"there is no step {root!r}", f"the steps are {', '.join(sorted(known))}")
        for pointer, part in parts
        if isinstance(part, StepReference)
        for root in sorted(part.roots - known)
    ]


def _names(plan: Plan) -> frozenset[str]:
    """Return the roots that an output may use."""
    return frozenset({INPUT, *(step.id for step in plan.steps), *(str(step.index) for step in plan.steps)})


def _bind(composite: Composite, view: View, argument_problems: ArgumentProblems) -> Composite:
    if composite.plan is None:
        return composite
    problems = list(composite.problems)
    steps: list[Step] = []
    uses = set()
    tools: dict[int, CatalogTool] = {}
    for step in composite.plan.steps:
        tool = view.resolve(step.tool) if step.tool is not None else None
        if step.tool is not None and tool is None:
            problems.append(_missing_tool(step, view))
        if tool is not None and not _is_certain(step.tool or "", tool, view.catalog.ownership):
            problems.append(_unqualified_tool(step, tool, view))
            tool = None
        if tool is not None:
            problems += argument_problems(step, tool)
            if tool.upstream_id != COMPOSITES:
                problems += unfit_tool(step, tool)
            uses.add(tool.qualified_name)
            tools[step.index] = tool
            step = replace(step, tool=tool.qualified_name)
        steps.append(step)
    plan = replace(composite.plan, steps=tuple(steps))
    problems += result_problems(plan, tools, composite.output)
    return replace(composite, plan=plan, problems=tuple(problems), uses=frozenset(uses))


def _missing_tool(step: Step, view: View) -> StepProblem:
    hint = did_you_mean(view.closest(step.tool or "")) or "pml tools lists the tools there are"
    pointer = f"/steps/{step.index}/tool"
    return StepProblem(step.id, pointer, f"there is no tool {step.tool!r}", hint, ErrorCode.NOT_FOUND)


def _is_certain(name: str, tool: CatalogTool, ownership: Ownership) -> bool:
    """Return True if a step's tool name cannot come to mean another server's tool."""
    names = (tool.qualified_name, *tool.former_names)
    return ownership.claim(name) is not None or (ownership.is_sole(tool.upstream_id) and name in names)


def _unqualified_tool(step: Step, tool: CatalogTool, view: View) -> StepProblem:
    named = [each.source for each in view.catalog.own_names.get(step.tool or "", ()) if view.shows(each)]
    hint = f"write {' or '.join(named or [tool.source])}"
    pointer = f"/steps/{step.index}/tool"
    return StepProblem(step.id, pointer, f"{step.tool!r} does not say whose tool it is", hint)


class CompositeUnavailableError(GatewayError):
    """A composite tool that cannot run with the current configuration and upstreams."""

    code = ErrorCode.UPSTREAM_UNAVAILABLE

    def __init__(self, name: str, problems: Sequence[StepProblem], *, may_know: bool) -> None:
        first = problems[0]
        where = f"step {first.step!r}: " if first.step else ""
        super().__init__(
            f"the workflow {name!r} is unavailable{f': {where}{first.message}' if may_know else ''}",
            hint=first.hint if may_know else "its owner sees why with: pml workflow validate",
            details={"errors": [problem.as_json() for problem in problems]} if may_know else {},
        )
