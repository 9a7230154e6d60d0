"""`call_batch` and `execute_workflow`, and plans suggested for an intent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.gateway.answers import data_result
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.plan_checks import dry_run_answer, plan_problems
from pml_gateway.gateway.request import MAX_INTENT_LENGTH, CallOptions, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.steps import StepCalls, fingerprint, question_result
from pml_gateway.index.clauses import split_clauses
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import RunStatus
from pml_gateway.workflow.parse import parse_batch, parse_workflow
from pml_gateway.workflow.plan import Plan, PlanError, StepProblem, limits_of
from pml_gateway.workflow.report import batch_answer, workflow_answer

if TYPE_CHECKING:
    from pml_gateway.policy.view import View


MAX_TOOLS = 8
"""Ranked tools in a plan: twice what most requests need, at 60 tokens each."""


async def suggested_plan(gateway: Gateway, scope: RequestScope, intent: Any) -> JsonObject:
    """A plan for an intent; nothing of it runs.

    Raises:
        InvalidInputError: the intent is no text.
    """
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidInputError("intent: what the workflow should do, in words, is missing")
    wanted = intent.strip()[:MAX_INTENT_LENGTH]
    state = await gateway.searchable()
    view = state.view(scope.client)
    parts = split_clauses(wanted) or (wanted,)
    ranked, chosen = await anyio.to_thread.run_sync(_found, state, view, wanted, parts)
    steps, missing = _skeleton(parts, chosen)
    tools = [{**_described(gateway, scope, tool), "score": round(score, 3)} for tool, score in ranked]
    next_step = "fill in the arguments, refer to earlier results as $<id>.<path>, and send the steps"
    return {
        "plan": {"intent": wanted, "tools": tools, "steps": steps, "missing": missing},
        "executed": False,
        "next": next_step if steps else "no tool fits; search_tools with other words, or '*' for the systems",
    }


def _found(
    state: GatewayState, view: View, wanted: str, parts: tuple[str, ...]
) -> tuple[list[tuple[CatalogTool, float]], list[CatalogTool | None]]:
    """The tools that fit the whole, and the best one for each part that reaches the score."""
    minimum = state.settings.search.min_score
    ranked = [(tool, score) for tool, score in state.search(view, wanted, MAX_TOOLS).tools if score >= minimum]
    if len(parts) == 1:
        return ranked, [ranked[0][0] if ranked else None]
    chosen = [next(((tool, score) for tool, score in state.search(view, part, 1).tools), None) for part in parts]
    best = [each[0] if each is not None and each[1] >= minimum else None for each in chosen]
    known = {tool.qualified_name for tool, _ in ranked}
    more = [each for each in chosen if each and each[1] >= minimum and each[0].qualified_name not in known]
    return [*ranked, *dict(more).items()], best


def _skeleton(parts: tuple[str, ...], chosen: list[CatalogTool | None]) -> tuple[list[JsonObject], list[str]]:
    steps: list[JsonObject] = []
    missing: list[str] = []
    for part, tool in zip(parts, chosen, strict=True):
        if tool is None:
            missing.append(f"no tool for {part[:120]!r}")
            continue
        step_id = f"step{len(steps)}"
        schema = tool.definition["inputSchema"]
        required = [str(name) for name in schema.get("required") or ()]
        properties = schema.get("properties") or {}
        arguments = {name: f"<{_kind(properties.get(name))}>" for name in required}
        steps.append({"id": step_id, "tool": tool.qualified_name, "arguments": arguments})
        missing += [f"{step_id}.arguments.{name}" for name in required]
    return steps, missing


def _kind(schema: object) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else "value"


def _described(gateway: Gateway, scope: RequestScope, tool: CatalogTool) -> JsonObject:
    described: JsonObject = {
        "name": tool.qualified_name,
        "signature": signature(tool.qualified_name, tool.definition["inputSchema"]),
        "description": first_sentence(tool.description or tool.title),
    }
    learned = gateway.shapes.shape_of(scope.client, tool)
    if "outputSchema" in tool.definition:
        described["returns"] = signature("", tool.definition["outputSchema"])
    elif learned is not None:
        described |= {"returns": signature("", learned.schema), "returns_inferred": True}
    return described


class WorkflowTools:
    """Each method answers one meta-tool. A run that asks its user something is kept until the answers come."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway = gateway
        self._caller = caller

    async def call_batch(self, scope: RequestScope, arguments: JsonObject, options: CallOptions) -> JsonObject:
        """Independent calls side by side, answered in their order, each with its own success or error."""
        await self._gateway.ready()
        request = fingerprint("call_batch", arguments)
        if options.request_state is not None:
            run = self._caller.suspended.take(scope.client.id, request, options.request_state)
        else:
            plan, refused = parse_batch(arguments, limits_of(self._gateway.state.settings.workflow))
            run = Run(plan, refused=refused)
        calls = StepCalls(self._gateway, self._caller, scope, options, run_name="call_batch")
        await run.advance(calls, options.input_responses)
        if run.is_waiting:
            return question_result(run, self._caller.suspended.keep(scope.client.id, request, run))
        answer = await batch_answer(run, calls)
        return {**data_result(answer), "isError": "error" in answer}

    async def execute_workflow(self, scope: RequestScope, arguments: JsonObject, options: CallOptions) -> JsonObject:
        """Steps that use each other's results in one request; with only an intent, a plan to fill in."""
        state = await self._gateway.ready()
        if not arguments.get("steps") and arguments.get("intent") is not None:
            return data_result(await suggested_plan(self._gateway, scope, arguments["intent"]))
        request = fingerprint("execute_workflow", arguments)
        calls = StepCalls(self._gateway, self._caller, scope, options, run_name="execute_workflow")
        if options.request_state is not None:
            run = self._caller.suspended.take(scope.client.id, request, options.request_state)
        else:
            plan, problems = self._checked(state, scope, arguments)
            if arguments.get("dry_run"):
                return data_result(dry_run_answer(plan, problems, lambda name: self._caller.find(state, scope, name)))
            if problems:
                raise PlanError(problems)
            run = Run(plan)
        await run.advance(calls, options.input_responses)
        if run.is_waiting:
            return question_result(run, self._caller.suspended.keep(scope.client.id, request, run))
        answer = await workflow_answer(run, calls)
        return {**data_result(answer), "isError": answer["status"] == RunStatus.FAILED}

    def _checked(
        self, state: GatewayState, scope: RequestScope, arguments: JsonObject
    ) -> tuple[Plan, list[StepProblem]]:
        """The plan and everything wrong with it, as far as that is known before any call."""
        dry_run = arguments.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise InvalidInputError(f"dry_run: {str(dry_run)[:40]!r} is neither true nor false")
        plan, problems = parse_workflow(arguments, limits_of(state.settings.workflow))
        # Arguments that cannot be read are judged as such only: what their tool would miss in them is not known.
        unreadable = {problem.step for problem in problems if "/arguments" in problem.path}
        found = plan_problems(plan, lambda name: self._caller.find(state, scope, name), now=not dry_run)
        kept = (each for each in found if each.step not in unreadable or each.path.endswith("/tool"))
        return plan, [*problems, *kept]
