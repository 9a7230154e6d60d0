"""A `tools/call`: the tool found, its arguments checked, its upstream asked, or a meta-tool's answer."""

from __future__ import annotations

from dataclasses import replace
from logging import DEBUG
from typing import cast

from mcp.shared.exceptions import MCPError

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import (
    GatewayError,
    UpstreamUnavailableError,
)
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.gateway.call import TOOL_CALL, Attempt, CallContext, Serve
from pml_gateway.gateway.host import Host
from pml_gateway.gateway.pending_runs import PendingRuns
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.steps import composite_result
from pml_gateway.gateway.tasks import Tasks
from pml_gateway.gateway.tool_call import ToolCall
from pml_gateway.log import get_logger
from pml_gateway.processes.budget import spending
from pml_gateway.results.answers import (
    answered_error,
    carried,
    check_result,
    check_text,
    error_result,
    for_version,
    writable,
)
from pml_gateway.results.repair import repaired, with_declared_output
from pml_gateway.results.settle import Settler
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import COMPOSITES

logger = get_logger(__name__)


class Caller:
    """Serves every call of one gateway."""

    def __init__(self, gateway: Host, tasks: Tasks | None = None, runs: PendingRuns | None = None) -> None:
        self._gateway = gateway
        self.settler = Settler(gateway.results, gateway.shapes, lambda: gateway.state.settings.activity.keeps_values)
        self.pending_runs = PendingRuns() if runs is None else runs
        self.tasks = Tasks(gateway) if tasks is None else tasks
        self._own_servers: dict[str, Serve] = {"": _ask_meta_tool, COMPOSITES: composite_result}

    async def call(
        self, scope: RequestScope, name: str, arguments: JsonObject, options: CallOptions, version: str = LATEST_VERSION
    ) -> JsonObject:
        """Return the result of a direct call; failures are results too.

        Raises:
            MCPError: the upstream's own error, where one of its tools was called by name.
        """
        call = ToolCall(await self._context(scope, options), name, arguments, "direct")
        answered = None
        try:
            with spending(self._gateway.new_budget(scope.client.quota_key)):
                result = for_version(await carried(await call.run()), version)
            check_result(result, TOOL_CALL, call.name, version)
        except GatewayError as error:
            result = for_version(writable(error_result(error)), version)
            if call.is_by_name:
                answered = answered_error(error)
        except MCPError:
            raise
        # A fault of ours must end this call only, and its text may quote what others sent.
        except Exception as fault:
            logger.error("%s in a call of %r", type(fault).__name__, call.name, exc_info=logger.isEnabledFor(DEBUG))
            result = for_version(writable(error_result(_internal(fault))), version)
        if answered is not None:
            raise answered
        return result

    async def as_owner(
        self, scope: RequestScope, meta_tool: str, arguments: JsonObject, options: CallOptions
    ) -> JsonObject:
        """Return the result of a meta-tool, whether or not clients have it; for commands of the gateway's owner."""
        context = await self._context(replace(scope, is_last=True), options)
        own = context.state.meta_tools.by_name(meta_tool)
        try:
            with spending(self._gateway.new_budget(scope.client.quota_key)):
                result = await ToolCall(context, meta_tool, arguments, "meta", own=own).run()
        except GatewayError as error:
            result = error_result(error)
        return for_version(await carried(result), LATEST_VERSION)

    async def _context(self, scope: RequestScope, options: CallOptions) -> CallContext:
        state = await self._gateway.wait_for_tools()
        return CallContext(self._gateway, self, state, state.view(scope.client), scope, options)

    def server(self, server: str) -> Serve | None:
        """Return what answers the calls of a tool that belongs to the gateway itself; None for those of servers."""
        own = self._own_servers.get(server)
        return None if own is None or server in self._gateway.pool.upstreams else own

    async def ask_server(self, call: Attempt, arguments: JsonObject) -> JsonObject:
        """Return the result of the tool's upstream, with URIs as clients know them.

        Raises:
            UpstreamError: what kept the upstream from answering.
        """
        gateway, tool = self._gateway, cast(CatalogTool, call.tool)
        params: JsonObject = {"name": tool.name, "arguments": arguments}
        options, once = call.context.options, not tool.idempotent
        result = await ask_upstream(gateway, tool.upstream_id, TOOL_CALL, params, options, once=once)
        if "outputSchema" in tool.definition:
            result = with_declared_output(result)
        return with_public_uris(result, tool.upstream_id, gateway.state.catalog.offers)


async def _ask_meta_tool(call: Attempt, arguments: JsonObject) -> JsonObject:
    return await cast(MetaTool, call.own).handler(call.context, arguments)


async def ask_upstream(
    gateway: Host, upstream_id: str, method: str, params: JsonObject, options: CallOptions, *, once: bool = False
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
    task = options.task if method == TOOL_CALL else None
    result = await upstream.request(
        method, sent, on_progress=options.on_progress, audience=options.audience, once=once, task=task
    )
    return repaired(result, method, str(params.get("uri") or ""))


def _internal(fault: Exception) -> GatewayError:
    return GatewayError(
        f"the gateway failed in this call ({type(fault).__name__})",
        hint="whether the tool ran is not known; `log.level: debug` shows where it failed",
        details={"executed": "unknown"},
    )
