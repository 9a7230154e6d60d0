"""A `tools/call`: the tool found, its arguments checked, its upstream asked, or a meta-tool's answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from logging import DEBUG

from mcp.shared.exceptions import MCPError

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import (
    GatewayError,
    ToolForbiddenError,
    ToolHeldBackError,
    ToolNotFoundError,
    UpstreamUnavailableError,
)
from pml_gateway.exposure.actions import ActionCall, adapt, choose, type_problems
from pml_gateway.exposure.focus import FOCUS, focused
from pml_gateway.exposure.grouping import Namespace
from pml_gateway.exposure.instructions import NO_SYSTEMS
from pml_gateway.exposure.meta_tool import MetaTool, MetaTools
from pml_gateway.exposure.namespaces import call_signature
from pml_gateway.exposure.schema_text import outcome
from pml_gateway.exposure.validation import ValidArguments, check_arguments, check_object, fitted, refusal
from pml_gateway.gateway.answers import (
    answered_error,
    carried,
    check_result,
    check_text,
    error_result,
    for_version,
    writable,
)
from pml_gateway.gateway.callees import Callees
from pml_gateway.gateway.events import calling
from pml_gateway.gateway.host import Host
from pml_gateway.gateway.request import CallOptions, RequestScope, call_intent, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.steps import StepCalls, composite_result, may_read
from pml_gateway.gateway.tool_list import expose
from pml_gateway.log import get_logger
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import spending
from pml_gateway.results.content import noted
from pml_gateway.results.repair import repaired, with_declared_output
from pml_gateway.results.settle import Call, PresentedResult, Route, Settler
from pml_gateway.results.store import ResolvedReference, visible_to
from pml_gateway.text import did_you_mean
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import COMPOSITES
from pml_gateway.workflow.suspended import SuspendedRuns

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallContext:
    """One `tools/call` while it is answered: who makes it, what that client sees, and what accompanies the call."""

    gateway: Host
    caller: Caller
    state: GatewayState
    view: View
    scope: RequestScope
    options: CallOptions

    @property
    def meta_tools(self) -> MetaTools:
        """The meta-tools that exist for this client."""
        return self.state.meta_tools_of(self.view)

    def find(self, name: str) -> CatalogTool:
        """Return the tool of this name, see `Caller.find`."""
        return self.caller.find(self.view, name)

    @property
    def callees(self) -> Callees:
        """Tools and namespaces that the client may call."""
        return Callees(self.state, self.view)

    def outcome_of(self, tool: CatalogTool) -> str:
        """Describe what a call of the tool returns and does; see `outcome`."""
        output = self.gateway.shapes.output_of(self.scope.client, tool)
        if output is None:
            return outcome(tool.effect, None)
        return outcome(tool.effect, output.schema, is_learned=output.observed is not None)

    def steps(self, run_name: str) -> StepCalls:
        """Return the caller for the steps of a run."""
        return StepCalls(self.gateway, self.caller, self.scope, self.options, run_name=run_name)


class Caller:
    """Serves every call of one gateway."""

    def __init__(self, gateway: Host) -> None:
        self._gateway = gateway
        self._settler = Settler(
            gateway.results, gateway.etags, gateway.shapes, lambda: gateway.state.settings.usage.arguments
        )
        self.suspended = SuspendedRuns()

    async def call(
        self, scope: RequestScope, name: str, arguments: JsonObject, options: CallOptions, version: str = LATEST_VERSION
    ) -> JsonObject:
        """Return the result of a direct call; failures are results too.

        Raises:
            MCPError: the upstream's own error, where one of its tools was called by name.
        """
        context = await self._context(scope, options)
        with spending(self._gateway.new_budget(scope.client.share)):
            return await self._answer(context, name, arguments, version)

    async def _answer(self, context: CallContext, name: str, arguments: JsonObject, version: str) -> JsonObject:
        answered = None
        scope, options, state, view = context.scope, context.options, context.state, context.view
        meta_tool = _meta_tool_called(context, name)
        namespace = None if meta_tool is not None else context.callees.namespace(name, arguments)
        try:
            if state.settings.gateway.direct_calls == "listed":
                await _require_listed(context, name, meta_tool, namespace)
            if meta_tool is not None:
                result = await _answer_of(meta_tool, context, arguments)
            elif namespace is not None:
                call = adapt(namespace, choose(namespace, arguments, context.callees.others()), arguments)
                check = partial(check_action, namespace, call)
                settled = await self.run(scope, view, call.tool, call.arguments, options, route="meta", check=check)
                result = noted(settled.result, ignored=call.ignored)
            else:
                tool = self.find(view, name)
                result = (await self.run(scope, view, tool, arguments, options, route="direct")).result
            result = for_version(await carried(result), version)
            check_result(result, "tools/call", name, version)
        except GatewayError as error:
            result = for_version(writable(error_result(error)), version)
            if meta_tool is None and namespace is None:
                answered = answered_error(error)
        except MCPError:
            raise
        # A fault of ours must end this call only, and its text may quote what others sent.
        except Exception as fault:
            logger.error("%s in a call of %r", type(fault).__name__, name, exc_info=logger.isEnabledFor(DEBUG))
            result = for_version(writable(error_result(_internal(fault))), version)
        if answered is not None:
            raise answered
        return result

    async def as_owner(
        self, scope: RequestScope, meta_tool: str, arguments: JsonObject, options: CallOptions
    ) -> JsonObject:
        """Return the result of a meta-tool, whether or not clients have it; for commands of the gateway's owner."""
        context = await self._context(replace(scope, is_last=True), options)
        try:
            with spending(self._gateway.new_budget(scope.client.share)):
                result = await _answer_of(context.state.meta_tools.by_name(meta_tool), context, arguments)
        except GatewayError as error:
            result = error_result(error)
        return for_version(await carried(result), LATEST_VERSION)

    async def _context(self, scope: RequestScope, options: CallOptions) -> CallContext:
        state = await self._gateway.wait_for_tools()
        return CallContext(self._gateway, self, state, state.view(scope.client), scope, options)

    async def run(
        self,
        scope: RequestScope,
        view: View,
        tool: CatalogTool,
        arguments: JsonObject,
        options: CallOptions,
        *,
        route: Route,
        if_none_match: str | None = None,
        run: str = "",
        check: Callable[[JsonObject], Awaitable[ValidArguments]] | None = None,
        refs: tuple[str, ...] | None = None,
    ) -> PresentedResult:
        """Make one call: references in the arguments are resolved, then checked, and the result is settled.

        Args:
            scope: who calls.
            view: what this client sees.
            tool: a tool this client may call.
            arguments: as the client sent them.
            options: what accompanies the call.
            route: how it came; direct calls are checked by their upstream alone.
            if_none_match: the etag of the result the client holds.
            run: what this call belongs to, for the lineage of its result.
            check: makes arguments fit, or refuses them in the words of how the tool was called; by its schema unless
                given.
            refs: the references that the arguments were made of, where they have been replaced already.

        Raises:
            GatewayError: nothing was sent, or what kept the upstream from answering.
        """
        with calling(self._gateway.events, self._gateway.state, scope, tool, route, run, arguments) as running:
            if refs is None:
                resolved = await self._gateway.results.resolve(scope.client, arguments, visible_to(view))
            else:
                resolved = ResolvedReference(arguments, refs)
            check_object(resolved.arguments)
            is_composite = tool.upstream_id == COMPOSITES and COMPOSITES not in self._gateway.pool.upstreams
            fitting = ValidArguments(resolved.arguments)
            if check is not None:
                fitting = await check(resolved.arguments)
            elif route != "direct" or is_composite:
                fitting = await check_arguments(tool, resolved.arguments)
            may_be_kept = route != "direct" or self._gateway.state.settings.references.mode == "all"
            reads = may_be_kept and may_read(self._gateway.state, scope)
            call = Call(scope.client, tool, route, arguments, resolved.refs, if_none_match, run, may_read=reads)
            if is_composite:
                result = await composite_result(
                    self._gateway, self, scope, tool, fitting.arguments, options, refs=resolved.refs
                )
            else:
                result = await self._send(tool, fitting.arguments, options)
            settled = await self._settler.settle(call, result)
            running.result = settled.result
            if fitting.coerced:
                told = noted(settled.result, coerced=fitting.coerced)
                return replace(settled, result=told, coerced=fitting.coerced)
            return settled

    async def _send(self, tool: CatalogTool, arguments: JsonObject, options: CallOptions) -> JsonObject:
        """Return the result of the tool's upstream, with URIs as clients know them.

        Raises:
            UpstreamError: what kept the upstream from answering.
            ToolForbiddenError: the tool only runs as a task, which the gateway does not relay.
        """
        if tool.task_only:
            raise ToolForbiddenError(
                f"{tool.qualified_name} only runs as a task (execution.taskSupport: required)",
                hint="tasks are not relayed; connect to this server directly for it",
            )
        params: JsonObject = {"name": tool.name, "arguments": arguments}
        result = await ask_upstream(self._gateway, tool.upstream_id, "tools/call", params, options)
        if "outputSchema" in tool.definition:
            result = with_declared_output(result)
        return with_public_uris(result, tool.upstream_id, self._gateway.state.catalog.offers)

    def find(self, view: View, name: str) -> CatalogTool:
        """As `find`, but a tool of a server that has not listed anything yet is unavailable rather than unknown.

        Only for clients that may see every tool of that server: for others, even the server's name is none of theirs.
        """
        try:
            return find(view, name)
        except ToolNotFoundError as error:
            owner = self._gateway.unlisted_owner(name)
            if owner is not None and view.sees_all_of(owner.upstream_id):
                raise owner.not_listed() from None
            if wait := self._gateway.state.systems(view).wait:
                error.hint = f"{error.hint}{'' if error.hint.endswith('?') else '.'} {wait}" if error.hint else wait
            raise


async def ask_upstream(
    gateway: Host, upstream_id: str, method: str, params: JsonObject, options: CallOptions
) -> JsonObject:
    """Send one request with what accompanies it, and return the result in the shapes of the protocol.

    Raises:
        UpstreamError: what kept the upstream from answering.
    """
    upstream = gateway.pool.upstreams.get(upstream_id)
    if upstream is None:
        raise UpstreamUnavailableError(f"{upstream_id}: no longer configured")
    sent = dict(params)
    if options.meta:
        sent["_meta"] = options.meta
    if options.input_responses is not None:
        sent["inputResponses"] = options.input_responses
    if options.request_state is not None:
        sent["requestState"] = options.request_state
    check_text(sent)
    result = await upstream.request(method, sent, on_progress=options.on_progress, audience=options.audience)
    return repaired(result, method, str(params.get("uri") or ""))


def find(view: View, name: str) -> CatalogTool:
    """Return the visible tool of this name.

    Raises:
        ToolNotFoundError: with the closest visible names; a hidden tool gives the same answer as an unknown one.
        ToolHeldBackError: its server changed it, and the change is not approved.
    """
    tool = view.resolve(name)
    if tool is not None:
        return tool
    if view.holds_back(name):
        raise ToolHeldBackError(name)
    closest = view.closest(name)
    hint = did_you_mean(closest) or search_hint(view)
    raise ToolNotFoundError(f"no tool named {name!r}", hint=hint, details={"closest": closest})


def search_hint(view: View, state: GatewayState | None = None) -> str:
    """Return the hint for an unknown tool name; `state` tells if more tools are to come."""
    has_search = view.has_meta_tool("search_tools")
    hint = "search_tools finds tools by what they do" if has_search else "tools/list has the names"
    wait = state.systems(view).wait if state is not None else ""
    return f"{hint}. {wait}" if wait else hint


def _meta_tool_called(context: CallContext, name: str) -> MetaTool | None:
    """Return the enabled meta-tool of this name, or of this alias where no tool has it."""
    tool, focus = context.meta_tools.find(name), context.scope.focus
    also = (FOCUS,) if focus is not None and focus.follows else ()
    if tool is None or not tool.is_enabled(context.state.settings, also):
        return None
    return tool if name == tool.name or context.view.resolve(name) is None else None


async def _answer_of(meta_tool: MetaTool, context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return the answer of a meta-tool, with its keys under their usual names."""
    reading = meta_tool.read(arguments, context.callees.parameters)
    result = await meta_tool.handler(context, reading.fields)
    return noted(result, ignored=(f"/{escaped(key)}" for key in reading.ignored))


async def _require_listed(
    context: CallContext, name: str, meta_tool: MetaTool | None, namespace: Namespace | None
) -> None:
    state, view = context.state, context.view
    mode = effective_mode(context.scope, state.settings.gateway)
    intent = call_intent(context.scope, state.settings.gateway)
    exposure = await expose(state, view, mode, intent, focused(context.scope.focus, mode, state.catalog, view.shows))
    if meta_tool is not None:
        is_beside = not exposure.namespaces or meta_tool.beside_namespaces(state.settings, NO_SYSTEMS) is not None
        is_listed = exposure.meta_tools and is_beside
    elif namespace is not None:
        is_listed = exposure.meta_tools and exposure.namespaces
    else:
        is_listed = find(view, name).qualified_name in exposure.names()
    if not is_listed:
        is_callable = exposure.meta_tools and view.has_meta_tool("call_tool")
        hint = "call it through call_tool" if is_callable else "ask the gateway's owner to list it"
        raise ToolForbiddenError(
            f"{name!r} is not on this client's list, and gateway.direct_calls is 'listed'",
            hint="call it as an action of its namespace" if exposure.namespaces else hint,
        )


async def check_action(namespace: Namespace, call: ActionCall, arguments: JsonObject) -> ValidArguments:
    """Return the arguments of an action as its tool takes them, checked by type and then by the tool's schema.

    Args:
        namespace: what was called.
        call: the action, and where each argument stood in what was sent.
        arguments: the call's arguments as they would be sent, references resolved.

    Raises:
        InvalidInputError: with a JSON pointer into what was sent per fault, and the action's signature.
    """
    fitting, found = await fitted(call.tool, arguments)
    problems = found and (
        type_problems(call, fitting.arguments) or [{**each, "path": call.place(each["path"])} for each in found]
    )
    if problems:
        raise refusal(problems, f"{namespace.name} {call.action}", call_signature(namespace, call.action))
    return ValidArguments(fitting.arguments, {call.place(path): done for path, done in fitting.coerced.items()})


def _internal(fault: Exception) -> GatewayError:
    return GatewayError(
        f"the gateway failed in this call ({type(fault).__name__})",
        hint="whether the tool ran is not known; `log.level: debug` shows where it failed",
        details={"executed": "unknown"},
    )
