"""Context of an operation, and the command line as a client of servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.mcp.capabilities import NO_CAPABILITIES
from pml_gateway.owner.results import ToolResult
from pml_gateway.paths import Paths
from pml_gateway.policy.principal import OWNER
from pml_gateway.quotas import OWN
from pml_gateway.types import ExposureMode, JsonObject


@dataclass(frozen=True, slots=True)
class OperationContext:
    """A gateway, where its files lie, which configuration it is of, and who hears how far an operation has come.

    Lists are explained in `mode`, if one is given, instead of the gateway's own.
    """

    gateway: Gateway
    paths: Paths
    identity: str
    tell: Callable[[JsonObject], None] = lambda _: None
    mode: ExposureMode | None = None

    async def listed_now(self, seconds: float | None = None) -> float:
        """Have every server list again what it offers; return the time limit, by default the slowest server's."""
        upstreams = self.gateway.pool.upstreams.values()
        limit = seconds or max((each.connector.longest_start for each in upstreams), default=0.0) + 1
        await self.gateway.refresh(limit)
        return limit

    async def meta_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """Return the result of a meta-tool, also of one that no client is given."""
        is_shared = self.gateway.pool.local is not None
        options = CallOptions(audience=CommandLineClient()) if is_shared else CallOptions()
        result = await Caller(self.gateway).as_owner(RequestScope(OWNER), name, arguments, options)
        return cast("ToolResult", result)


class CommandLineClient:
    """The audience of calls that commands make: one client, whose sessions are kept from one command to the next."""

    client_id = OWNER.id
    quota_key = OWN
    is_one_client = True
    client_capabilities = NO_CAPABILITIES
    answers_later = False
    log_level = None

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Refuse: nobody reads questions while a command runs.

        Raises:
            MCPError: always.
        """
        raise MCPError(METHOD_NOT_FOUND, "the command line cannot be asked")

    async def tell(self, method: str, params: JsonObject) -> None:
        """Drop a notification."""

    async def let_go(self) -> None:
        """Do nothing: there is no stream to end."""
