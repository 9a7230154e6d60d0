"""What is wrong with a plan, given the tools its client may call, before anything is called."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.errors import GatewayError, UpstreamError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.validation import open_problems
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import unfit_tool
from pml_gateway.workflow.flow import Flow, OutputOf, follow
from pml_gateway.workflow.plan import Plan, Step, StepProblem
from pml_gateway.workflow.templates import references

FindTool = Callable[[str], CatalogTool]
"""A name to the tool of this client.

Raises:
    GatewayError: there is none, or it cannot be reached now.
"""


@dataclass(frozen=True, slots=True)
class Checked:
    """Everything wrong with a plan, the tools of its steps by position, and what flows between them."""

    problems: list[StepProblem]
    tools: Mapping[int, CatalogTool]
    flow: Flow


def check_plan(
    plan: Plan, find: FindTool, meta_tools: Container[str], output_of: OutputOf, *, now: bool = False
) -> Checked:
    """Steps whose tool does not exist, or refuses the arguments as far as they are known; and references that fail.

    A server that is away is only a problem of the moment: `now` leaves it out, and the call itself will tell.
    """
    tools: dict[int, CatalogTool] = {}
    problems = _tool_problems(plan, find, meta_tools, tools, now=now)
    flow = follow(plan, tools, output_of)
    return Checked([*problems, *flow.problems], tools, flow)


def plan_problems(plan: Plan, find: FindTool, meta_tools: Container[str], *, now: bool = False) -> list[StepProblem]:
    """Steps whose tool does not exist for this client, or cannot be called as they do."""
    return _tool_problems(plan, find, meta_tools, {}, now=now)


def _tool_problems(
    plan: Plan, find: FindTool, meta_tools: Container[str], tools: dict[int, CatalogTool], *, now: bool
) -> list[StepProblem]:
    problems: list[StepProblem] = []
    for step in plan.steps:
        if step.tool is None:
            continue
        try:
            tool = tools[step.index] = find(step.tool)
            problems += unfit_tool(step, tool) or refused_arguments(step, tool)
        except UpstreamError as error:
            if not now:
                problems.append(_problem(step, error))
        except GatewayError as error:
            problems.append(_meta_problem(step) if step.tool in meta_tools else _problem(step, error))
    return problems


def refused_arguments(step: Step, tool: CatalogTool) -> list[StepProblem]:
    """What the tool's schema refuses; what references stand for is not known yet, and is not judged."""
    pointers = frozenset(pointer for pointer, _ in references(step.arguments))
    call = signature(tool.qualified_name, tool.definition["inputSchema"])
    return [
        StepProblem(
            step.id,
            f"/steps/{step.index}/arguments{problem['path']}",
            f"{problem['path'] or '/'}: {problem['message']}",
            "; ".join([*([problem["hint"]] if "hint" in problem else []), f"expected {call}"]),
        )
        for problem in open_problems(tool, step.given, pointers)
    ]


def dry_run_answer(
    plan: Plan, problems: list[StepProblem], checked: Checked, catalog: Catalog, *, questions: str
) -> JsonObject:
    """What a dry run answers: each step with its call and what is known of it, or what is wrong and how to mend it.

    `questions` says whether the client could be asked something meanwhile.
    """
    layer_of = {step_id: number for number, layer in enumerate(plan.layers) for step_id in layer}
    steps: list[JsonObject] = []
    for step in plan.steps:
        wrong = [problem for problem in problems if problem.step == step.id]
        entry: JsonObject = {"id": step.id, "ok": not wrong, "layer": layer_of[step.id]}
        tool = checked.tools.get(step.index)
        if tool is not None:
            entry["call"] = {"tool": tool.qualified_name, "arguments": checked.flow.calls.get(step.id, {})}
            entry["effect"] = effect_of(tool, catalog)
            entry["signature"] = signature(tool.qualified_name, tool.definition["inputSchema"])
        if step.id in checked.flow.unknown:
            entry["unknown"] = checked.flow.unknown[step.id]
        if wrong:
            entry["problems"] = [{"path": each.path, "message": each.message, "hint": each.hint} for each in wrong]
        steps.append(entry)
    answer: JsonObject = {"dry_run": True, "valid": not problems, "steps": steps, "calls": 0, "questions": questions}
    general = [problem.as_json() for problem in problems if not problem.step]
    return {**answer, "problems": general} if general else answer


def effect_of(tool: CatalogTool, catalog: Catalog) -> str:
    """What a call may do, by the annotations of the tool and of all that it could come to."""
    reached = (catalog.by_name(name) for name in tool.reach)
    calls = [each for each in reached if each is not None and not each.reach] or [tool]
    effects = {_own_effect(each) for each in calls}
    return next(effect for effect in EFFECTS if effect in effects)


EFFECTS = ("destructive", "undeclared", "write", "read")
"""The gravest first; of a tool that does not say whether it destroys anything, that is not known."""


def _own_effect(tool: CatalogTool) -> str:
    annotations = tool.definition.get("annotations")
    said = annotations if isinstance(annotations, dict) else {}
    if said.get("readOnlyHint") is True:
        return "read"
    match said.get("destructiveHint"):
        case True:
            return "destructive"
        case False:
            return "write"
        case _:
            return "undeclared"


def _problem(step: Step, error: GatewayError) -> StepProblem:
    return StepProblem(step.id, f"/steps/{step.index}/tool", error.message, error.hint, error.code)


def _meta_problem(step: Step) -> StepProblem:
    message = f"{step.tool} is a meta-tool, and steps call tools"
    return StepProblem(step.id, f"/steps/{step.index}/tool", message, "name the tool that it would call")
