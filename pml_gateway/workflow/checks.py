"""What is wrong with a plan, given the tools its client may call, before anything is called."""

from __future__ import annotations

from collections.abc import Callable, Container

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError, UpstreamError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.validation import open_problems
from pml_gateway.types import JsonObject
from pml_gateway.workflow.plan import Plan, Step, StepProblem
from pml_gateway.workflow.templates import references

FindTool = Callable[[str], CatalogTool]
"""A name to the tool of this client.

Raises:
    GatewayError: there is none, or it cannot be reached now.
"""


def plan_problems(plan: Plan, find: FindTool, meta_tools: Container[str], *, now: bool = False) -> list[StepProblem]:
    """Steps whose tool does not exist, or refuses the arguments as far as they are known.

    A server that is away is only a problem of the moment: `now` leaves it out, and the call itself will tell.
    """
    problems: list[StepProblem] = []
    for step in plan.steps:
        if step.tool is None:
            continue
        try:
            problems += refused_arguments(step, find(step.tool))
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


def dry_run_answer(plan: Plan, problems: list[StepProblem], find: FindTool) -> JsonObject:
    """What a dry run answers: each step with its layer, its tool, or what is wrong and how to put it right."""
    layer_of = {step_id: number for number, layer in enumerate(plan.layers) for step_id in layer}
    steps: list[JsonObject] = []
    for step in plan.steps:
        wrong = [problem for problem in problems if problem.step == step.id]
        entry: JsonObject = {"id": step.id, "ok": not wrong, "layer": layer_of[step.id]}
        if step.tool is not None and not any(problem.path.endswith("/tool") for problem in wrong):
            tool = find(step.tool)
            entry["signature"] = signature(tool.qualified_name, tool.definition["inputSchema"])
        if wrong:
            entry["problems"] = [{"path": each.path, "message": each.message, "hint": each.hint} for each in wrong]
        steps.append(entry)
    answer: JsonObject = {"dry_run": True, "valid": not problems, "steps": steps, "calls": 0}
    general = [problem.as_json() for problem in problems if not problem.step]
    return {**answer, "problems": general} if general else answer


def _problem(step: Step, error: GatewayError) -> StepProblem:
    return StepProblem(step.id, f"/steps/{step.index}/tool", error.message, error.hint, error.code)


def _meta_problem(step: Step) -> StepProblem:
    message = f"{step.tool} is a meta-tool, and steps call tools"
    return StepProblem(step.id, f"/steps/{step.index}/tool", message, "name the tool that it would call")
