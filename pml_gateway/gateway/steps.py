"""Steps of workflows and composite tools, which call tools exactly as their client could."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import (
    ErrorCode,
    GatewayError,
    InvalidInputError,
    ResultStoreError,
    ToolNotFoundError,
    UpstreamProtocolError,
    UpstreamUnavailableError,
    error_json,
)
from pml_gateway.gateway.call import Attempt, CallContext
from pml_gateway.gateway.rule_decisions import approve_together
from pml_gateway.gateway.tool_call import ToolCall
from pml_gateway.log import get_logger
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.policy.view import View
from pml_gateway.results.content import Content, content_of, data_result, with_media
from pml_gateway.results.settle import PresentedResult, describe_inputs
from pml_gateway.results.store import visible_to
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.storage.pending import fingerprint
from pml_gateway.types import Effect, JsonObject
from pml_gateway.workflow.composite import Composite, CompositeUnavailableError
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import StepOutcome, StepStatus
from pml_gateway.workflow.plan import OnError, Plan, Step, expressions_of
from pml_gateway.workflow.report import MediaCollector, first_error
from pml_gateway.workflow.sharing import Invocation
from pml_gateway.workflow.templates import render

logger = get_logger(__name__)


class StepCalls:
    """`Tools` and `Keeper` of one request: everything under its client's policy, as direct calls are."""

    def __init__(
        self,
        context: CallContext,
        run_name: str,
        inside: Composite | None = None,
        max_effect: Effect = Effect.DESTRUCTIVE,
        within: str = "",
    ) -> None:
        """Prepare the calls of one run.

        Args:
            context: the request.
            run_name: the meta-tool or composite tool.
            inside: the composite tool whose steps these are; one that was edited meanwhile does not go on.
            max_effect: the strongest effect that each of them may have.
            within: digest of the requests that the run is part of.
        """
        self._within = within
        self._context = context
        self._gateway = context.gateway
        self._pending = context.calls.pending_runs
        self._client = context.scope.client
        self._options = context.options
        self._run_name = run_name
        self._inside = inside
        self._max_effect = max_effect

    async def resumed(self, arguments: JsonObject, begin: Callable[[], Run]) -> Run | None:
        """Return the run that waits for the answers that came with this request; None where it is a new one.

        `begin` makes a new run of the request; it takes over the progress of one that was stored.

        Raises:
            PendingNotFoundError: the state of an earlier question is not this client's, or too old.
            SharedStateError: the run may be in Redis, which does not answer.
        """
        if self._options.request_state is None:
            return None
        state, request = self._options.request_state, self._fingerprint(arguments)
        return await self._pending.take(state, begin, owner=self._client.id, fingerprint=request)

    async def advance(self, run: Run, arguments: JsonObject) -> JsonObject | None:
        """Run what can run; the interim result where steps ask their user something, each question by its slot.

        `arguments` are those of the request, which has to come again with the answers.
        """
        self._within = fingerprint(self._within, {"request": self._fingerprint(arguments)})
        if self._options.request_state is None and self._gateway.state.call_rules.may_ask:
            calls = [self._call(each) for each in await run.known_calls(self)]
            await approve_together(calls, self._run_name, self._options.on_progress)
        async with run.claim or nullcontext():
            await run.advance(self, self._options.input_responses)
            if not run.is_waiting:
                return None
            client, request = self._client, self._fingerprint(arguments)
            state = await self._pending.add(run, owner=client.id, quota_key=client.quota_key, fingerprint=request)
        result: JsonObject = {"resultType": "input_required", "requestState": state}
        requests = {key: asked for key, (_, _, _, asked) in run.questions.items()}
        return {**result, "inputRequests": requests} if requests else result

    def _fingerprint(self, arguments: JsonObject) -> str:
        name = self._run_name if self._inside is None else f"{self._run_name}\n{self._inside.written}"
        return fingerprint(name, arguments)

    def _view(self) -> View:
        """Return the tools that steps may call now; settings may change during a run."""
        return self._gateway.state.view(self._client, inside=self._inside is not None)

    def read_only(self, name: str) -> str | None:
        """Return the tool's qualified name, if its annotations say that it only reads."""
        tool = self._view().resolve(name)
        return tool.qualified_name if tool is not None and tool.effect is Effect.READ else None

    def is_repeatable(self, name: str) -> bool:
        """Return True if a tool's annotations say that it may be called again."""
        tool = self._view().resolve(name)
        return tool is not None and tool.idempotent

    async def call(self, invocation: Invocation) -> PresentedResult:
        """Call one tool.

        Raises:
            GatewayError: nothing was sent, or what kept the upstream from answering.
        """
        call = self._call(invocation)
        try:
            result = await call.run()
            if result.get("resultType") == "input_required" and not self._options.may_ask:
                raise UpstreamProtocolError(
                    f"{call.target} asks its user something, which this client's protocol cannot carry here",
                    hint="use a client of protocol 2026-07-28, or call the tool where its question can be answered",
                )
        except GatewayError as error:
            told = self._told(call, error)
            if told is error:
                raise
            raise told from error
        return call.presented

    def _call(self, invocation: Invocation) -> ToolCall:
        # Clients follow the task of the plan, and not those that servers make of its calls.
        task = None if self._options.task is None else TaskRequest()
        options = replace(
            self._options,
            on_progress=None,
            input_responses=invocation.responses,
            request_state=invocation.state,
            task=task,
        )
        context = replace(self._context, state=self._gateway.state, view=self._view(), options=options)
        call = ToolCall(
            context,
            invocation.tool,
            invocation.arguments,
            "workflow" if self._inside is None else "inside",
            run_name=self._run_name,
            if_none_match=invocation.if_none_match,
            refs=invocation.refs,
            max_effect=self._max_effect,
        )
        call.within = self._within
        return call

    def _told(self, call: ToolCall, error: GatewayError) -> GatewayError:
        """Return the error of a step as its client may see it."""
        is_unknown = call.tool is None and isinstance(error, ToolNotFoundError)
        if self._inside is not None:
            is_hidden = call.tool is not None and call.target not in self._gateway.state.view(self._client).names
            return InternalToolError(error) if is_unknown or is_hidden else error
        if is_unknown and call.name in call.context.meta_tools:
            return InvalidInputError(
                f"{call.name} is a meta-tool, and calls are of tools", hint="name the tool that it would call"
            )
        return error

    async def load(self, node: JsonObject) -> tuple[Any, tuple[str, ...]]:
        """Return the value of a `{"$ref": ...}` node of this client."""
        client = self._client
        visible = visible_to(self._gateway.state.view(client))
        resolved = await self._gateway.results.resolve(client, {"value": node}, visible)
        return resolved.arguments["value"], resolved.refs

    async def report(self, done: int, total: int, message: str) -> None:
        """Relay how far the run is, where the client wants to know."""
        if self._options.on_progress is not None:
            await self._options.on_progress(done, total, message)

    @property
    def threshold(self) -> int | None:
        """Tokens above which a result is kept instead of answered; None for clients that could not read it."""
        state = self._gateway.state
        return state.settings.references.threshold_tokens if self._context.may_read else None

    @property
    def media_bytes(self) -> int | None:
        """Characters above which an image or audio is kept; None as with `threshold`."""
        return None if self.threshold is None else self._gateway.state.settings.references.media_bytes

    async def keep(
        self, step: Step, outcome: StepOutcome, made_from: frozenset[str], *, over: int | None
    ) -> StoredResult | None:
        """Keep what a step made; results of tools with what is known of them, others with the tools before them."""
        if self._gateway.state.settings.references.mode == "off":
            return None
        called = outcome.called
        content = called.content if called is not None else Content("json", outcome.value)
        view = self._view()
        tool = view.resolve(step.tool) if step.tool is not None else None
        before = (view.resolve(name) for name in sorted(made_from)) if tool is None else ()
        source = Source(
            tool=None if tool is None else (tool.upstream_id, tool.name),
            name=tool.qualified_name if tool is not None else "transform",
            refs=outcome.refs,
            at=time.time(),
            run=self._run_name,
            made_from=tuple((each.upstream_id, each.name) for each in before if each is not None),
        )
        if source.refs:
            self._gateway.results.note_use(source)
        try:
            return await self._gateway.results.put(self._client, content, source=source, over=over)
        except (ResultStoreError, GatewayError) as error:
            logger.warning("the result of a step is cut instead of kept: %s", error)
            return None


class InternalToolError(GatewayError):
    """Failed call of a tool hidden from its client; the message leaves out the tool's name."""

    def __init__(self, error: GatewayError) -> None:
        faults = error.details.get("errors") if isinstance(error, InvalidInputError) else None
        listed = "; ".join(f"{fault['path'] or '/'}: {fault['message']}" for fault in faults or ())
        if isinstance(error, ToolNotFoundError):
            message = "the tool it calls is not available to this client"
        elif listed:
            message = f"the tool it calls refuses the arguments: {listed}"
        else:
            message = f"the tool it calls did not answer ({error.code})"
        super().__init__(message, hint="the owner of the gateway finds the reason in its log")
        self.code = error.code
        self.retryable = error.retryable
        logger.warning("a composite tool: %s", error)


FAILED_STEPS = "pml-gateway/failed_steps"
"""In `_meta`: the steps that failed in a workflow that goes on without them."""


async def composite_result(call: Attempt, arguments: JsonObject) -> JsonObject:
    """Return the result of a composite tool.

    Raises:
        CompositeUnavailableError: a tool or an argument it needs does not exist (any more).
        PendingNotFoundError: the state of an earlier question is not this client's, or too old.
    """
    began, refs = time.time(), call.refs or ()
    context, gateway, tool = call.context, call.context.gateway, cast(CatalogTool, call.tool)
    state = gateway.state
    composite = state.composites.get(tool.name)
    if composite is None or composite.plan is None:
        raise UpstreamUnavailableError(f"{tool.qualified_name}: no longer configured")
    plan = composite.plan
    if composite.problems:
        may_know = state.view(context.scope.client).hides_nothing
        raise CompositeUnavailableError(tool.name, composite.problems, may_know=may_know)
    # Its own effect may have been a milder one when it was checked.
    max_effect = call.max_effect if isinstance(call, ToolCall) else Effect.DESTRUCTIVE
    steps = StepCalls(context, tool.qualified_name, composite, max_effect, call.within)

    def begin() -> Run:
        return Run(plan, composite.given(arguments), given_refs=refs)

    run = await steps.resumed(arguments, begin) or begin()
    question = await steps.advance(run, arguments)
    if question is not None:
        return question
    result = await _output_of(composite, plan, run, steps)
    if composite.definition is None or composite.definition.output_as == "value" or result.get("isError"):
        return result
    inputs = describe_inputs(arguments, whole=gateway.state.settings.activity.keeps_values)
    source = Source(
        tool=(tool.upstream_id, tool.name),
        name=tool.qualified_name,
        inputs=inputs,
        refs=refs,
        at=began,
        seconds=time.time() - began,
    )
    return await _by_reference(context, result, source)


async def _output_of(composite: Composite, plan: Plan, run: Run, steps: StepCalls) -> JsonObject:
    """Return the result of a run that ended."""
    outcomes = [run.outcomes[step.index] for step in plan.steps]
    failed = [step.id for step, outcome in zip(plan.steps, outcomes, strict=True) if outcome.is_failure]
    if failed and plan.on_error is not OnError.CONTINUE_ALL:
        statuses = {step.id: outcome.status.value for step, outcome in zip(plan.steps, outcomes, strict=True)}
        return data_result({"error": {**first_error(plan, outcomes), "details": {"steps": statuses}}}, is_error=True)
    done = [outcome for outcome in outcomes if outcome.status is StepStatus.OK]
    if not done:
        reason = first_error(plan, outcomes) if failed else error_json(ErrorCode.INTERNAL, "no step applied")
        return data_result({"error": reason}, is_error=True)
    if composite.output is not None:
        roots, absent = run.roots(expressions_of(composite.output))

        async def load(node: JsonObject) -> Any:
            return (await steps.load(node))[0]

        result = await _as_result(run, await render(composite.output, roots, load, absent=absent))
    elif done[-1].called is not None:
        result = done[-1].called.result
    else:
        result = await _as_result(run, done[-1].value)
    return {**result, "_meta": {**result.get("_meta", {}), FAILED_STEPS: failed}} if failed else result


async def _by_reference(context: CallContext, result: JsonObject, source: Source) -> JsonObject:
    """Return the result as a reference to it; whole where that would be no shorter, or cannot be kept or read."""
    if not context.may_read:
        return result
    try:
        stored = await context.gateway.results.put(context.scope.client, content_of(result), source=source, over=0)
    except ResultStoreError as error:
        logger.warning("a result of %s is given whole: %s", source.name, error)
        return result
    if stored is None:
        return result
    failed = result.get("_meta", {}).get(FAILED_STEPS)
    return {**data_result(stored.answer()), **({"_meta": {FAILED_STEPS: failed}} if failed else {})}


async def _as_result(run: Run, value: Any) -> JsonObject:
    media: list[JsonObject] = []
    apart = MediaCollector(run, None, None, media)
    shown, found = await apart.set_apart(value)
    apart.give(found)
    return with_media(data_result(shown if isinstance(shown, dict) else {"result": shown}), media)
