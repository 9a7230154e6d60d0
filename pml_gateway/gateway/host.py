"""Interface that calls and meta-tools need: implemented by the gateway and by a FastMCP server."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Protocol

from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.gateway.decisions import Decider
from pml_gateway.gateway.state import GatewayState
from pml_gateway.mcp.elicitation import Audience
from pml_gateway.mcp.listing import Listed
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import RequestBudget
from pml_gateway.results.learning import LearnedShapes
from pml_gateway.results.store import ResultStore
from pml_gateway.telemetry.events import Events
from pml_gateway.types import JsonObject


class Server(Protocol):
    """Something with tools, as calls reach it."""

    @property
    def upstream_id(self) -> str:
        """By which its tools are known."""

    @property
    def call_timeout(self) -> float:
        """Return the seconds that a call may take without progress."""

    @property
    def last_listed(self) -> Listed | None:
        """Return the last listing."""

    def not_listed(self) -> GatewayError:
        """Return the error for a request that needs a list while none is known."""

    def request(
        self,
        method: str,
        params: JsonObject,
        /,
        *,
        on_progress: ProgressFnT | None = None,
        audience: Audience | None = None,
        once: bool = False,
        task: TaskRequest | None = None,
    ) -> Awaitable[JsonObject]:
        """Send one request with raw params and return the raw result; with `once`, never twice; with `task`, as one."""


class Pool(Protocol):
    """The servers by their ids."""

    @property
    def upstreams(self) -> Mapping[str, Server]:
        """In the order of the configuration."""


class Host(Protocol):
    """A server of calls: its state, what it keeps, and the servers behind it."""

    @property
    def state(self) -> GatewayState:
        """Return the current state."""

    @property
    def pool(self) -> Pool:
        """The servers."""

    @property
    def results(self) -> ResultStore:
        """Stored results."""

    @property
    def shapes(self) -> LearnedShapes:
        """Observed shapes of results without a schema."""

    @property
    def events(self) -> Events:
        """The subscribers that are told what clients do."""

    @property
    def folder(self) -> str:
        """Return the folder that its clients work in."""

    @property
    def approvals(self) -> Approvals:
        """Calls that wait for the owner."""

    @property
    def deciders(self) -> Sequence[Decider]:
        """Asked about every attempt right before it is sent, in this order; the first that refuses ends it."""

    async def recorded_arguments(
        self, client: Principal, tools: Collection[CatalogTool]
    ) -> Mapping[CatalogTool, Sequence[JsonObject]]:
        """Return arguments of recorded calls of these tools that this client made, newest first."""

    async def wait_for_tools(self) -> GatewayState:
        """Return the state, once there is one to answer from."""

    async def wait_for_search(self) -> GatewayState:
        """Return the state, with what there is of an index to search."""

    async def first_lists(self, view: View) -> None:
        """Wait a moment for servers of this view that have yet to list their tools."""

    def unlisted_owner(self, tool_name: str) -> Server | None:
        """Return the server whose tool this is by its name, if no list of it is known."""

    def unavailable(self, view: View) -> dict[str, str]:
        """Return the servers that may have tools for this view and show none now, each with the reason."""

    def new_budget(self, quota_key: str) -> RequestBudget:
        """Return the limits of one client request."""
