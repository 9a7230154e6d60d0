"""A call of a composite tool becomes a run of its steps, with the caller's own rights."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import ErrorCode, ResultStoreError, UpstreamUnavailableError
from pml_gateway.log import get_logger
from pml_gateway.results.content import content_of
from pml_gateway.results.stored import Source
from pml_gateway.server.outcomes import describe_inputs
from pml_gateway.server.request import CallOptions, RequestScope
from pml_gateway.server.results import data_result
from pml_gateway.server.steps import StepCalls, fingerprint, question_result
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import Composite, CompositeUnavailableError
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import StepStatus, error_json
from pml_gateway.workflow.plan import OnError, Plan
from pml_gateway.workflow.report import first_error
from pml_gateway.workflow.templates import render

if TYPE_CHECKING:
    from pml_gateway.server.calling import Caller
    from pml_gateway.server.gateway import Gateway

logger = get_logger(__name__)

FAILED_STEPS = "pml-gateway/failed_steps"
"""In `_meta`: the steps that failed in a workflow that goes on without them."""


class CompositeCalls:
    """Runs the composite tools of one gateway."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway = gateway
        self._caller = caller

    async def call(
        self, scope: RequestScope, tool: CatalogTool, arguments: JsonObject, options: CallOptions
    ) -> JsonObject:
        """The result of a composite tool.

        Raises:
            CompositeUnavailableError: a tool or an argument it needs does not exist (any more).
            ReferenceNotFoundError: the state of an earlier question is not this client's, or too old.
        """
        began = time.time()
        state = self._gateway.state
        composite = state.composites.get(tool.name)
        if composite is None or composite.plan is None:
            raise UpstreamUnavailableError(f"{tool.qualified_name}: no longer configured")
        if composite.problems:
            may_know = scope.client.sees_everything and not state.settings.gateway.blacklisted_tools
            raise CompositeUnavailableError(tool.name, composite.problems, may_know=may_know)
        request = fingerprint(tool.qualified_name, arguments)
        if options.request_state is not None:
            run = self._caller.suspended.take(scope.client.id, request, options.request_state)
        else:
            run = Run(composite.plan, composite.given(arguments))
        calls = StepCalls(self._gateway, self._caller, scope, options, run_name=tool.qualified_name, inside=True)
        await run.advance(calls, options.input_responses)
        if run.is_waiting:
            return question_result(run, self._caller.suspended.keep(scope.client.id, request, run))
        result = await self._result(scope, tool, composite, composite.plan, run, calls)
        if composite.definition is None or composite.definition.output_as == "value" or result.get("isError"):
            return result
        return await self._by_reference(scope, tool, arguments, began, result)

    async def _result(
        self, scope: RequestScope, tool: CatalogTool, composite: Composite, plan: Plan, run: Run, calls: StepCalls
    ) -> JsonObject:
        outcomes = [run.outcomes[step.index] for step in plan.steps]
        failed = [step.id for step, outcome in zip(plan.steps, outcomes, strict=True) if outcome.is_failure]
        if failed and plan.on_error is not OnError.CONTINUE_ALL:
            statuses = {step.id: outcome.status.value for step, outcome in zip(plan.steps, outcomes, strict=True)}
            return _failure({**first_error(plan, outcomes), "details": {"steps": statuses}})
        done = [outcome for outcome in outcomes if outcome.status is StepStatus.OK]
        if not done:
            reason = first_error(plan, outcomes) if failed else error_json(ErrorCode.INTERNAL, "no step applied")
            return _failure(reason)
        if composite.output is not None:
            roots, absent = run.roots()

            async def load(node: JsonObject) -> Any:
                return (await calls.load(node))[0]

            result = _as_result(await render(composite.output, roots, load, absent=absent))
        elif done[-1].called is not None:
            result = done[-1].called.result
        else:
            result = _as_result(done[-1].value)
        return {**result, "_meta": {**result.get("_meta", {}), FAILED_STEPS: failed}} if failed else result

    async def _by_reference(
        self, scope: RequestScope, tool: CatalogTool, arguments: JsonObject, began: float, result: JsonObject
    ) -> JsonObject:
        """The result as a reference to it; whole where it cannot be kept."""
        if self._gateway.results.settings.mode == "off":
            return result
        source = Source(
            tool=(tool.upstream_id, tool.name),
            name=tool.qualified_name,
            inputs=describe_inputs(arguments, whole=self._gateway.state.settings.usage.arguments),
            at=began,
            seconds=time.time() - began,
        )
        try:
            stored = await self._gateway.results.put(scope.client, content_of(result), source=source)
        except ResultStoreError as error:
            logger.warning("a result of %s is given whole: %s", tool.qualified_name, error)
            return result
        if stored is None:
            return result
        failed = result.get("_meta", {}).get(FAILED_STEPS)
        return {**data_result(stored.answer()), **({"_meta": {FAILED_STEPS: failed}} if failed else {})}


def _as_result(value: Any) -> JsonObject:
    return data_result(value if isinstance(value, dict) else {"result": value})


def _failure(error: JsonObject) -> JsonObject:
    return {**data_result({"error": error}), "isError": True}
