"""`call_batch` and `execute_workflow`: several calls in one request, or the tools for an intent without steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.modes import ScoredTools
from pml_gateway.gateway.call import CallContext, search_hint
from pml_gateway.gateway.request import MAX_INTENT_LENGTH
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.steps import StepCalls
from pml_gateway.index.clauses import split_clauses
from pml_gateway.meta.arguments import boolean, choice
from pml_gateway.meta.search_tools import hit_of
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import current_budget
from pml_gateway.results.content import data_result, noted, with_media
from pml_gateway.types import Effect, JsonObject
from pml_gateway.workflow.checks import PlanCheck, check_plan, dry_run_answer
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import RunStatus
from pml_gateway.workflow.parse import parse_batch, parse_workflow
from pml_gateway.workflow.plan import Plan, PlanError, StepProblem, limits_of
from pml_gateway.workflow.report import batch_answer, workflow_answer

EFFECTS = ("read", "write", "destructive")
MAX_EFFECT: JsonObject = {"enum": ["read", "write"]}
"""The schema of the strongest effect that the calls of a batch or workflow may have."""


MAX_TOOLS = 3
"""Maximum number of tools for each part, at 60 tokens each."""

IN_CONTEXT = 40
"""Number of best tools for the whole intent whose score for it affects the order of a part's tools."""

WHOLE_SHARE = 0.3
"""Weight of the score for the whole intent in the order of a part's tools: the rest of an intent tells the system."""


def batch_definition(systems: Systems) -> JsonObject:
    """Return the definition of `call_batch`."""
    return {
        "name": "call_batch",
        "description": "Several independent calls at once; each answers in its own slot.",
        "annotations": systems.effect.promise,
        "inputSchema": {
            "type": "object",
            "properties": {
                "calls": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "object"},
                            "id": {"type": "string"},
                        },
                        "required": ["name"],
                    },
                },
                "max_parallel": {"type": "integer"},
                "max_effect": MAX_EFFECT,
            },
            "required": ["calls"],
        },
    }


def workflow_definition(systems: Systems) -> JsonObject:
    """Return the definition of `execute_workflow`."""
    return {
        "name": "execute_workflow",
        "annotations": systems.effect.promise,
        "description": (
            "Run dependent calls in one request: results flow from step to step without passing through you. "
            '"$id.path" or "$0.items[*].id" (JMESPath) in arguments is an earlier result, and orders the steps; others '
            'run in parallel. "$item" is the item of for_each. A transform step (JMESPath over $id) calls nothing. '
            "return: final or step ids keeps answers short. With only intent: finds the tools."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "steps": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "tool": {"type": "string"},
                            "arguments": {"type": "object"},
                            "transform": {"type": "string"},
                            "for_each": {"description": "a list, or a reference to one"},
                            "when": {"type": "string"},
                            "depends_on": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                },
                "intent": {"type": "string"},
                "on_error": {"enum": ["continue", "continue_all", "stop"]},
                "budget": {"type": "object", "description": "max_steps, max_tokens, max_seconds"},
                "dry_run": {"type": "boolean"},
                "return": {"description": "all, final or [ids]"},
                "max_effect": MAX_EFFECT,
            },
        },
    }


async def call_batch(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Run independent calls concurrently; return their results or errors in the same order."""
    calls = StepCalls(context, "call_batch", max_effect=_max_effect(arguments))

    def begin() -> Run:
        plan, refused = parse_batch(arguments, limits_of(context.state.settings.workflow), context.callees)
        return Run(plan, refused=refused)

    run = await calls.resumed(arguments, begin) or begin()
    question = await calls.advance(run, arguments)
    if question is not None:
        return question
    media: list[JsonObject] = []
    answer = await batch_answer(run, calls, media)
    return with_media(_told(context, run, data_result(answer, is_error="error" in answer), "/calls"), media)


async def execute_workflow(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Run steps that use each other's results; with only an intent, find the tools for its parts."""
    if not arguments.get("steps") and arguments.get("intent") is not None:
        others = (f"/{key}" for key in arguments if key != "intent")
        return noted(await tools_for_intent(context, arguments["intent"]), ignored=others)
    calls = StepCalls(context, "execute_workflow", max_effect=_max_effect(arguments))

    def begin() -> Run:
        plan, problems = parse_workflow(arguments, limits_of(context.state.settings.workflow), callees=context.callees)
        if problems:
            raise PlanError(problems)
        return Run(plan)

    run = await calls.resumed(arguments, begin)
    if run is None:
        plan, problems, checked = await _checked(context, arguments)
        if boolean(arguments, "dry_run"):
            answer = dry_run_answer(plan, problems, checked, questions=_questions(context))
            return noted(data_result(answer), ignored=plan.ignored)
        if problems:
            raise PlanError(problems)
        run = Run(plan)
    else:
        await _check_rest(context, run, _max_effect(arguments))
    question = await calls.advance(run, arguments)
    if question is not None:
        return question
    media: list[JsonObject] = []
    answer = await workflow_answer(run, calls, media)
    result = _told(context, run, data_result(answer, is_error=answer["status"] == RunStatus.FAILED), "/steps")
    ignored = ["/intent"] if arguments.get("intent") is not None else ()
    return with_media(noted(result, ignored=ignored), media)


def _max_effect(arguments: JsonObject) -> Effect:
    given = arguments.get("max_effect")
    return Effect.DESTRUCTIVE if given is None else Effect(choice(arguments, "max_effect", EFFECTS))


def _told(context: CallContext, run: Run, result: JsonObject, entries: str) -> JsonObject:
    """Return the result, with the keys of its calls that were left out and the values that were coerced."""
    coerced: dict[str, str] = {}
    for step in run.plan.steps:
        outcome = run.outcomes[step.index]
        for each in (outcome, *(outcome.items or ())):
            changes = each.called.coerced if each.called is not None else {}
            coerced |= {f"{entries}/{step.index}/arguments{at}": done for at, done in changes.items()}
    return noted(result, ignored=run.plan.ignored, coerced=coerced)


async def _check_rest(context: CallContext, run: Run, max_effect: Effect) -> None:
    """Refuse to resume a run if this client may no longer make its remaining steps.

    Raises:
        PlanError: with the steps and the reasons.
    """
    rest = replace(run.plan, steps=tuple(step for step in run.plan.steps if not run.is_done(step)))
    find = partial(context.find, max_effect=max_effect)
    check = partial(check_plan, rest, find, context.state.meta_tools, now=True)
    checked = await current_budget().in_thread(check)
    if checked.problems:
        raise PlanError(checked.problems, subject="the rest of the workflow")


def _questions(context: CallContext) -> str:
    """Return the advance notice about questions that servers may ask while their tools run."""
    audience = context.options.audience
    can_be_asked = audience is not None and bool(audience.client_capabilities)
    if not can_be_asked and not context.options.may_ask:
        return "this client cannot be asked: a tool that asks its user something fails"
    return "not known before: a server may ask this client's user while its tool runs"


async def _checked(context: CallContext, arguments: JsonObject) -> tuple[Plan, list[StepProblem], PlanCheck]:
    """Return the plan, and all problems that are known before any call."""
    dry_run = boolean(arguments, "dry_run")
    limits = limits_of(context.state.settings.workflow)
    plan, problems = parse_workflow(arguments, limits, callees=context.callees)
    # Arguments that cannot be read get only that error: values that their tool would miss are unknown.
    unreadable = {problem.step for problem in problems if "/arguments" in problem.path}
    find = partial(context.find, max_effect=_max_effect(arguments))
    check = partial(check_plan, plan, find, context.meta_tools, now=not dry_run)
    # There may be many steps, and large schemas.
    checked = await current_budget().in_thread(check)
    kept = (each for each in checked.problems if each.step not in unreadable or each.path.endswith("/tool"))
    return plan, [*problems, *kept], checked


def _beside_namespaces(definition: JsonObject) -> JsonObject:
    """Return a definition for clients that get namespaces listed: the called tools take an action."""
    said = 'A tool here takes {"action": ..., ...} as arguments.'
    return {**definition, "description": f"{definition['description']} {said}"}


async def tools_for_intent(context: CallContext, intent: Any) -> JsonObject:
    """Answer with the best tools for each part of an intent; call none.

    Raises:
        InvalidInputError: the intent is not a text.
    """
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidInputError("intent: what the workflow should do, in words, is missing")
    wanted = intent.strip()[:MAX_INTENT_LENGTH]
    await context.gateway.first_lists(context.view)
    state = await context.gateway.wait_for_search()
    view = state.view(context.scope.client)
    context = replace(context, state=state, view=view)
    found = await anyio.to_thread.run_sync(_by_part, state, view, wanted)
    parts = [{"part": part, "tools": [hit_of(context, *each) for each in tools]} for part, tools in found.items()]
    if any(found.values()):
        after = "nothing ran; send steps with these tools, dry_run checks them"
    else:
        after = f"no tool fits; {search_hint(view, context.scope.client, state)}"
    return data_result({"parts": parts, "next": after})


def _by_part(state: GatewayState, view: View, wanted: str) -> dict[str, ScoredTools]:
    """Find the tools for each part of an intent, best first. Blocking: takes some milliseconds for each part."""
    whole = {tool.qualified_name: score for tool, score in state.search(view, wanted, IN_CONTEXT).tools}
    minimum = state.settings.search.min_score
    by_part: dict[str, ScoredTools] = {}
    for part in split_clauses(wanted) or (wanted,):
        tools = [found for found in state.search(view, part, MAX_TOOLS).tools if found[1] >= minimum]
        by_part[part] = sorted(
            tools, key=lambda found: found[1] + WHOLE_SHARE * whole.get(found[0].qualified_name, 0.0), reverse=True
        )
    return by_part


CALL_BATCH = MetaTool(
    "call_batch",
    batch_definition,
    call_batch,
    aliases=("batch",),
    beside_namespaces=lambda _, systems: _beside_namespaces(batch_definition(systems)),
    calls_in="calls",
)
EXECUTE_WORKFLOW = MetaTool(
    "execute_workflow",
    workflow_definition,
    execute_workflow,
    beside_namespaces=lambda _, systems: _beside_namespaces(workflow_definition(systems)),
    unlisted=("trace", "max_parallel"),
    calls_in="steps",
)
