"""`Exposure`: how much of a FastMCP server its clients see, as a transform beside FastMCP's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastmcp.apps.config import is_model_visible
from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_context
from fastmcp.server.sessions import current_principal
from fastmcp.server.transforms import GetToolNext
from fastmcp.server.transforms.catalog import CatalogTransform
from fastmcp.tools import Tool
from fastmcp.tools.base import InputRequiredToolResult, ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import PrivateAttr

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.instructions import NO_SYSTEMS
from pml_gateway.exposure.meta_tool import MetaTool, MetaTools
from pml_gateway.exposure.modes import ModeExposure
from pml_gateway.fastmcp.background import ServerBackground
from pml_gateway.fastmcp.calls import AT_ONCE_ONLY, DecidedTool, Run, decided
from pml_gateway.fastmcp.host import KeptState, RequestHost
from pml_gateway.fastmcp.settings import read_settings
from pml_gateway.fastmcp.snapshots import Snapshots, hints_of, inlines_references
from pml_gateway.gateway.call import CallContext
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.request import CallOptions, RequestScope, is_modern, list_intent
from pml_gateway.gateway.tool_list import COUNTED_VERSION, expose, own_definitions
from pml_gateway.meta.call_tool import CALL_TOOL
from pml_gateway.meta.read_result import READ_RESULT
from pml_gateway.meta.search_tools import SEARCH_TOOLS
from pml_gateway.meta.tool_schema import TOOL_SCHEMA
from pml_gateway.meta.workflows import CALL_BATCH, EXECUTE_WORKFLOW
from pml_gateway.paths import Paths
from pml_gateway.policy.principal import ANONYMOUS, LOCAL, Principal, PrincipalKind, anonymous_session
from pml_gateway.policy.view import View
from pml_gateway.types import MODES, ExposureMode, JsonObject

DEFAULT_META_TOOLS = ("search_tools", "tool_schema", "call_tool")

LIST_WAIT = 5.0
"""Seconds a list that an intent selects waits for the model and the vectors that are stored."""

_META_TOOLS = MetaTools(SEARCH_TOOLS, TOOL_SCHEMA, CALL_TOOL, CALL_BATCH, EXECUTE_WORKFLOW, READ_RESULT)

_PASSED = "pml_gateway"
"""Metadata key under which a tool keeps its name at this transform; FastMCP does not send it."""


@dataclass(frozen=True, slots=True)
class _VisibleTools:
    """Tools that one request may see, by their names here and by their names at this transform."""

    host: RequestHost
    scope: RequestScope
    passed_as: Mapping[str, str]

    @property
    def view(self) -> View:
        return self.host.state.view(self.scope.client)

    def known(self, passed: str) -> list[CatalogTool]:
        """Return the tools that have a name at this transform, as they are listed."""
        return [each for each in self.view.catalog.tools if self.passed_as[each.name] == passed]


class _OwnTool(Tool):
    """A meta-tool as FastMCP lists and runs it."""

    _exposure: Exposure = PrivateAttr()
    _meta_name: str = PrivateAttr()

    def __init__(self, exposure: Exposure, definition: JsonObject) -> None:
        hints = definition.get("annotations")
        super().__init__(
            name=definition["name"],
            description=definition["description"],
            parameters=definition["inputSchema"],
            annotations=None if hints is None else ToolAnnotations.model_validate(hints),
        )
        self._exposure, self._meta_name = exposure, definition["name"]

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Answer one call of it."""
        return await self._exposure.answer(self._meta_name, arguments)


class Exposure(CatalogTransform):
    """Lists a part of a FastMCP server's tools, chosen by a mode, beside tools that search and call all of them.

    Added last to a server or proxy, it applies to everything that the server lists to the client of a request: what
    FastMCP hides from that client is in no list, hit, schema, call or suggestion.

        mcp.add_transform(Exposure("hybrid", intent="triage issues"))

    Args:
        mode: `meta_only` lists the meta-tools alone; `semantic` and `hybrid` also the tools that fit the intent (and
            hybrid those of its whitelist); `full_proxy` lists everything.
        intent: what the work is about, where a client does not say it in `_meta["pml-gateway/query"]` of its
            `tools/list` or in `?query=` of its URL.
        meta_tools: which there are; also `call_batch`, `execute_workflow` and `read_result`.
        settings: the rest of the configuration as in the gateway's file, such as
            `{"gateway": {"hybrid": {"whitelisted_tools": ["get_*"]}, "blacklisted_tools": ["drop_*"]}}`.

    Raises:
        ConfigurationError: names the value and what may be written.
    """

    def __init__(
        self,
        mode: ExposureMode | str = ExposureMode.META_ONLY,
        intent: str | None = None,
        *,
        meta_tools: Sequence[str] = DEFAULT_META_TOOLS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._settings = read_settings(mode, intent, meta_tools, settings or {})
        self._kept = KeptState(self._settings)
        self.snapshots = Snapshots(self._settings, _META_TOOLS)
        """The sets of tools that were asked about. For tests and measurements."""
        self._background: ServerBackground | None = None

    def __repr__(self) -> str:
        return f"Exposure({self._settings.gateway.tools_exposure.value!r})"

    async def list_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools to list; all of them while the client's view is being determined."""
        if self._bypass.get():
            return [self._marked(tool) for tool in tools]
        return await self.transform_tools(tools)

    async def transform_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the meta-tools in their order, then what the mode selects, by name."""
        context = _context()
        if context is None:
            # The server itself looks at its tools when it starts; nobody is shown them.
            return tools
        seen = await self._seen(context, in_list=True)
        mode, intent = self._settings.gateway.tools_exposure, _intent(context, seen.scope, self._settings.gateway)
        if intent is not None and MODES[mode].reads_intent:
            # Many clients list once: what an intent selects is worth waiting for, as in the gateway.
            await seen.host.background.wait_for_usable_index(LIST_WAIT)
            await seen.host.wait_for_search()
        state, view = seen.host.state, seen.view
        exposed = await expose(state, view, mode, intent)
        own = [_OwnTool(self, definition) for definition in own_definitions(state, view, exposed)]
        listed = _listed(tools, exposed, seen.passed_as)
        if exposed.as_sent:
            # Hosts keep those of apps from models, and route the calls of apps by them.
            listed += [tool for tool in tools if not is_model_visible(tool) and not self._denies(tool, seen)]
        if self._kept.deciders:
            listed = [tool.model_copy(update=AT_ONCE_ONLY) for tool in listed]
        return [*own, *listed]

    async def get_tool(self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None) -> Tool | None:
        """Return a meta-tool, or the tool that is called; also by another spelling of its name, unless it is denied."""
        tool = await self._found(name, call_next, version)
        if tool is None or isinstance(tool, _OwnTool) or not self._kept.deciders:
            return tool
        return DecidedTool.of(tool, self._decided)

    async def _found(self, name: str, call_next: GetToolNext, version: VersionSpec | None) -> Tool | None:
        own = self._enabled(name)
        if own is not None and name == own.name:
            return _OwnTool(self, own.definition(NO_SYSTEMS))
        tool = await call_next(name, version=version)
        context = _context()
        if tool is None and own is not None:
            return _OwnTool(self, {**own.definition(NO_SYSTEMS), "name": name})
        if context is None or (tool is not None and not self._settings.gateway.blacklisted_tools):
            return tool
        seen = await self._seen(context, in_list=False)
        if tool is None:
            found = seen.view.resolve(name)
            passed = None if found is None else seen.passed_as.get(found.name)
            tool = None if passed is None else await call_next(passed, version=version)
            return None if tool is None else tool.model_copy(update={"name": name})
        return None if self._denies(tool, seen) else tool

    async def answer(self, meta_tool: str, arguments: JsonObject) -> ToolResult:
        """Return a meta-tool's answer to the current request."""
        context = get_context()
        seen = await self._seen(context, in_list=False)
        request = context.request_context
        version = COUNTED_VERSION if request is None else request.protocol_version
        options = CallOptions(on_progress=context.report_progress)
        result = await Caller(seen.host).call(seen.scope, meta_tool, arguments, options, version)
        if result.get("resultType") == "input_required":
            return InputRequiredToolResult(InputRequiredResult.model_validate(result))
        return ToolResult.from_mcp_result(CallToolResult.model_validate(result))

    async def _decided(self, tool: Tool, arguments: JsonObject, run: Run) -> ToolResult:
        """Return the answer of a tool, unless a rule or a limit is against the call."""
        context = _context()
        if context is None:
            # The server's own code calls it, and no client.
            return await run(arguments)
        seen = await self._seen(context, in_list=False)
        seen.host.deciders = self._kept.deciders
        # Of several versions only one is known, and another may have another effect.
        same = [each for each in seen.known(tool.name) if each.definition.get("annotations") == hints_of(tool)]
        known = same or [self.snapshots.alone(tool, seen.host.server)]
        options = CallOptions(input_responses=context.input_responses, request_state=context.request_state)
        caller = Caller(seen.host)
        call = CallContext(seen.host, caller, seen.host.state, seen.view, seen.scope, options)
        return await decided(call, known[0], arguments, run)

    async def wait_for_index(self, timeout: float = 60.0) -> bool:
        """Wait up to `timeout` seconds, and return True if the index has the vectors of all tools.

        Nothing has to wait for this: until then, searches answer from the words alone. For tests and measurements.
        """
        return self._background is not None and await self._background.settled(timeout)

    async def _seen(self, context: Context, *, in_list: bool) -> _VisibleTools:
        """Return the tools that the client of a request may see; for a list request, middleware runs afterwards."""
        server = context.fastmcp
        asks_middleware = not in_list and not all(map(inlines_references, server.middleware))
        listed = await self.get_tool_catalog(context, run_middleware=asks_middleware)
        passed_as = {tool.name: name for tool in listed if (name := self._mark_of(tool)) is not None}
        mine = [tool for tool in listed if tool.name in passed_as]
        snapshot = await self.snapshots.of(mine, server)
        background = self._background
        if background is None or background.loop is not asyncio.get_running_loop():
            background = ServerBackground(Paths.from_environ())
            self._background = background
        background.want(self._settings, self.snapshots.catalog)
        host = RequestHost(snapshot, server, background, self._kept)
        return _VisibleTools(host, RequestScope(_client(context), url_query=_url_query(context)), passed_as)

    def _denies(self, tool: Tool, seen: _VisibleTools) -> bool:
        """Return True if the blacklist matches a tool, by its name at this transform."""
        if known := seen.known(tool.name):
            return not any(map(seen.view.shows, known))
        return self.snapshots.denies(tool, seen.host.server)

    def _enabled(self, name: str) -> MetaTool | None:
        found = _META_TOOLS.find(name)
        return found if found is not None and found.is_enabled(self._settings) else None

    def _marked(self, tool: Tool) -> Tool:
        meta = tool.meta or {}
        said = meta.get("fastmcp") or {}
        internal = said.get("_internal") or {}
        marks = {**(internal.get(_PASSED) or {}), str(self._instance_id): tool.name}
        marked = {**meta, "fastmcp": {**said, "_internal": {**internal, _PASSED: marks}}}
        return tool.model_copy(update={"meta": marked})

    def _mark_of(self, tool: Tool) -> str | None:
        said = (tool.meta or {}).get("fastmcp") or {}
        name: str | None = ((said.get("_internal") or {}).get(_PASSED) or {}).get(str(self._instance_id))
        return name


def _listed(tools: Sequence[Tool], exposed: ModeExposure, passed_as: Mapping[str, str]) -> list[Tool]:
    """Return the tools of an exposure, as they came to this transform: every version of each."""
    by_name: dict[str, list[Tool]] = {}
    for tool in tools:
        by_name.setdefault(tool.name, []).append(tool)
    listed = []
    for each in exposed.tools:
        for tool in by_name.get(passed_as[each.tool.name], ()):
            listed.append(_as_listed(tool, each.tool, as_sent=exposed.as_sent))
    return listed


def _as_listed(tool: Tool, known: CatalogTool, *, as_sent: bool) -> Tool:
    """Return a tool under a legal name, and with schemas that model APIs take; mostly the very same tool."""
    changes: dict[str, Any] = {}
    if tool.name == known.name != known.qualified_name:
        changes["name"] = known.qualified_name
    if known.repairs and not as_sent:
        changes["parameters"] = known.definition["inputSchema"]
        changes["output_schema"] = known.definition.get("outputSchema")
    return tool.model_copy(update=changes) if changes else tool


def _context() -> Context | None:
    try:
        return get_context()
    except RuntimeError:
        return None


def _client(context: Context) -> Principal:
    """Return the owner of results and references: the logged-in user, the session, or the server's own user."""
    principal = current_principal()
    if principal is not None:
        return Principal(f"user:{principal}", PrincipalKind.USER)
    request = context.request_context
    if request is None:
        return LOCAL
    if not is_modern(request.protocol_version):
        return anonymous_session(context.session_id)
    return LOCAL if request.request is None else ANONYMOUS


def _url_query(context: Context) -> str | None:
    request = context.request_context
    return None if request is None or request.request is None else request.request.query_params.get("query")


def _intent(context: Context, scope: RequestScope, settings: GatewaySection) -> str | None:
    request = context.request_context
    return list_intent({"_meta": None if request is None else request.meta}, scope, settings)
