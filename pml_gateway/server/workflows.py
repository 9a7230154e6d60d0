"""The meta-tools that make many calls: `call_batch` and `execute_workflow`."""

from __future__ import annotations

from pml_gateway.errors import InvalidInputError
from pml_gateway.server.calling import Caller
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.planning import dry_run_answer, plan_problems
from pml_gateway.server.request import CallOptions, RequestScope
from pml_gateway.server.results import data_result
from pml_gateway.server.state import GatewayState
from pml_gateway.server.steps import StepCalls, fingerprint, question_result
from pml_gateway.server.suggestions import suggested_plan
from pml_gateway.types import JsonObject
from pml_gateway.workflow.batch import parse_batch
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.limits import limits_of
from pml_gateway.workflow.outcome import RunStatus
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import Plan, PlanError, StepProblem
from pml_gateway.workflow.report import batch_answer, workflow_answer


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
