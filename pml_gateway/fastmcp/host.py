"""One request to a FastMCP server, as the meta-tools see it: a `Host` whose only server is that one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import DisabledError, FastMCPError, NotFoundError
from fastmcp.tools.base import InputRequiredToolResult, ToolResult
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult
from pydantic import PrivateAttr

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError, ToolNotFoundError, UpstreamProtocolError, UpstreamUnavailableError
from pml_gateway.fastmcp.background import ServerBackground
from pml_gateway.fastmcp.snapshots import Snapshot
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.gateway.decisions import Decider
from pml_gateway.gateway.limits import CallLimits, strictest
from pml_gateway.gateway.rule_decisions import decide_by_rules
from pml_gateway.gateway.state import GatewayState
from pml_gateway.mcp.elicitation import Audience
from pml_gateway.mcp.listing import Listed
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import RequestBudget, exceeded_schemas
from pml_gateway.results.learning import LearnedShapes, ShapesFile
from pml_gateway.results.store import ResultStore
from pml_gateway.storage.backend import Backend, build_backend
from pml_gateway.telemetry.events import Events
from pml_gateway.types import JsonObject


class KeptState:
    """State kept in memory between requests."""

    def __init__(self, settings: Settings) -> None:
        backend = build_backend(settings.storage.results, Path(), settings.references.max_bytes)

        async def open_backend() -> Backend:
            return backend

        self.settings = settings
        self.events = Events()
        self.approvals = Approvals()
        self.exceeded = exceeded_schemas()
        self.results = ResultStore(settings.references, open_backend)
        # Its file is written by a task of the gateway only.
        self.shapes = LearnedShapes(ShapesFile(Path("shapes.json")), lambda: settings.learning.output_shapes)
        self.deciders: list[Decider] = [decide_by_rules] if settings.rules else []
        """Asked about every call of a tool, right before it runs."""
        if any(strictest([("limits", settings.limits)], ())):
            self.deciders.append(CallLimits())


class RefusedResult(ToolResult):
    """The answer to a call that was decided against, with the error for callers in this process."""

    _error: GatewayError = PrivateAttr()

    @property
    def error(self) -> GatewayError:
        """The refusal."""
        return self._error

    @error.setter
    def error(self, error: GatewayError) -> None:
        self._error = error


@dataclass(frozen=True, slots=True)
class InProcess:
    """The server that a request came to, with its middleware, authorization and visibility, called from inside."""

    upstream_id: str
    server: FastMCP[Any]
    names: Mapping[tuple[str, str], str]
    last_listed: Listed | None = None
    call_timeout: float = math.inf

    def not_listed(self) -> GatewayError:
        """Return an error for callers that ask nevertheless: this host always lists."""
        return UpstreamUnavailableError(f"{self.upstream_id}: lists no tools")

    async def request(
        self,
        method: str,
        params: JsonObject,
        /,
        *,
        on_progress: ProgressFnT | None = None,
        audience: Audience | None = None,
        once: bool = False,
        task: TaskRequest | None = None,
    ) -> JsonObject:
        """Return the result of a tool; progress, logs and questions go to the client through the current request.

        Raises:
            GatewayError: a rule or limit is against it, or it is gone since it was found.
        """
        name = self.names.get((self.upstream_id, params["name"]), params["name"])
        try:
            result = await self.server.call_tool(name, params["arguments"])
        except (NotFoundError, DisabledError):
            raise ToolNotFoundError(
                f"no tool named {name!r}", hint="search_tools finds tools by what they do"
            ) from None
        except FastMCPError as error:
            # As FastMCP itself answers what a tool raises.
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        if isinstance(result, RefusedResult):
            raise result.error
        return as_json(result, name)


@dataclass(frozen=True, slots=True)
class Servers:
    """A `Pool` of the one server, which is behind each of its systems."""

    upstreams: Mapping[str, InProcess]


@dataclass(slots=True)
class RequestHost:
    """A `Host` for one request: what it may see, and what is kept for all."""

    snapshot: Snapshot
    server: FastMCP[Any]
    background: ServerBackground
    kept: KeptState
    deciders: Sequence[Decider] = ()
    """None for meta-tools: what they call is decided about where FastMCP runs it, as everything else is."""
    state: GatewayState = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.snapshot.indexed_by(self.background.index)

    @property
    def pool(self) -> Servers:
        """The server, by each of the systems that its tools belong to."""
        catalog = self.state.catalog
        return Servers({each: InProcess(each, self.server, catalog.assignments) for each in catalog.upstream_ids})

    @property
    def results(self) -> ResultStore:
        """Stored results, of each client its own."""
        return self.kept.results

    @property
    def shapes(self) -> LearnedShapes:
        """Observed shapes of results without a schema."""
        return self.kept.shapes

    @property
    def events(self) -> Events:
        """Nobody listens: FastMCP has middleware for that."""
        return self.kept.events

    @property
    def folder(self) -> str:
        """Return none: its clients may be anywhere."""
        return ""

    @property
    def approvals(self) -> Approvals:
        """Nobody can be asked here: a rule that asks refuses."""
        return self.kept.approvals

    async def recorded_arguments(
        self, client: Principal, tools: Collection[CatalogTool]
    ) -> Mapping[CatalogTool, Sequence[JsonObject]]:
        """None: calls are not recorded."""
        return {}

    async def wait_for_tools(self) -> GatewayState:
        """Return the state; a server that answers has one."""
        return self.state

    async def wait_for_search(self) -> GatewayState:
        """Return the state, with an index as far as one is ready."""
        await self.background.ready(self.snapshot.names)
        self.state = self.snapshot.indexed_by(self.background.index)
        return self.state

    async def first_lists(self, view: View) -> None:
        """Return at once: a server in process has always listed."""

    def unlisted_owner(self, tool_name: str) -> None:
        """None: a server in process has always listed."""

    def unavailable(self, view: View) -> dict[str, str]:
        """None, for the same reason."""
        return {}

    def new_budget(self, quota_key: str) -> RequestBudget:
        """Return the limits of one request; work runs in threads, since there are no workers."""
        return RequestBudget(self.kept.settings.limits, None, self.kept.exceeded, quota_key)


def as_json(result: object, name: str) -> JsonObject:
    """Return FastMCP's answer as it would be sent.

    Raises:
        UpstreamProtocolError: an extension answered in a shape of its own.
    """
    if isinstance(result, InputRequiredToolResult):
        return _dumped(result.input_required)
    if not isinstance(result, ToolResult):
        raise UpstreamProtocolError(f"{name} answered as a task", hint="call it directly, not through a meta-tool")
    raw = result.to_mcp_result()
    if isinstance(raw, CallToolResult):
        return _dumped(raw)
    if isinstance(raw, tuple):
        return _dumped(CallToolResult(content=raw[0], structured_content=raw[1]))
    return _dumped(CallToolResult(content=raw))


def _dumped(model: Any) -> JsonObject:
    dumped: JsonObject = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
