"""Asking one upstream for its lists: which are due, all their pages, and what sending a call depends on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import ServerCapabilities
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection, all_pages
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import HttpSide
from pml_gateway.mcp.listing import Due, Listed, ListKind, Offers, Remembered, known_again
from pml_gateway.mcp.session import PassthroughSession
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.retries import repeatable_tools, repeated


class ToolFacts:
    """Which arguments go into headers as well, and which tools may be called twice."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}
        self.repeatable = repeatable_tools(tools)

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """A tool's property paths that are annotated with `x-mcp-header`, with their header tokens."""
        if name not in self._input_schemas:
            return {}
        known = self._header_maps.get(name)
        if known is None:
            schema = self._input_schemas[name]
            known = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
            self._header_maps[name] = known
        return known


async def list_tools(
    connection: Connection, upstream_id: str, timeout: float, http: HttpSide | None = None
) -> tuple[JsonObject, ...]:
    """All tools, as the upstream sent them.

    Args:
        connection: where to ask.
        upstream_id: whose it is, for messages.
        timeout: seconds for all attempts.
        http: what is known of its HTTP side.

    Raises:
        GatewayError: it did not answer, or with what is no list.
    """

    async def attempt() -> tuple[JsonObject, ...]:
        try:
            return await connection.list_tools(upstream_id, timeout)
        except MCPError as exc:
            raise translate(exc, upstream_id, http=http) from exc

    return await repeated(attempt, anyio.current_time() + timeout)


logger = get_logger(__name__)

MAX_INSTRUCTIONS = 20_000
"""Characters of a server's instructions that are kept; what clients get of them is less."""


async def list_offers(
    session: PassthroughSession, kinds: Collection[ListKind], known: Offers, *, upstream_id: str, timeout: float
) -> Offers:
    """What the upstream offers; lists that are not among `kinds`, and those that fail, are as known before.

    Nothing here raises for what the upstream answers: its tools do not depend on it.
    """
    capabilities = session.server_capabilities or ServerCapabilities()

    async def listed(method: str, key: str, before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        try:
            return await all_pages(session, method, key, upstream_id=upstream_id, timeout=timeout)
        except (MCPError, GatewayError) as exc:
            if isinstance(exc, MCPError) and exc.code == METHOD_NOT_FOUND:
                return ()
            logger.warning("%s are as listed before: %s", key, translate(exc, upstream_id))
            return before

    prompts = known.prompts if capabilities.prompts else ()
    resources = known.resources if capabilities.resources else ()
    templates = known.templates if capabilities.resources else ()
    if capabilities.prompts and ListKind.PROMPTS in kinds:
        prompts = await listed("prompts/list", "prompts", prompts)
    if capabilities.resources and ListKind.RESOURCES in kinds:
        resources = await listed("resources/list", "resources", resources)
        templates = await listed("resources/templates/list", "resourceTemplates", templates)
    return Offers(
        prompts=prompts,
        resources=resources,
        templates=templates,
        instructions=(session.instructions or "")[:MAX_INSTRUCTIONS],
        has_prompts=capabilities.prompts is not None,
        has_resources=capabilities.resources is not None,
        completes=capabilities.completions is not None,
        subscribes=bool(capabilities.resources and capabilities.resources.subscribe),
    )


OFFERS_SHARE = 0.2
"""Of the time to connect, what each list beside the tools may take: one that is never given costs no tools."""


class Lists:
    """What an upstream lists; `last` is None until it has listed something since the start."""

    def __init__(self, effective: EffectiveSettings, remembered: Remembered) -> None:
        self._upstream_id = effective.upstream_id
        self._timeout = effective.connect_timeout
        self.due = Due()
        self.last: Listed | None = None
        self.tool_facts = ToolFacts(remembered.tools)
        self._tools = remembered.tools
        self._offers = remembered.offers

    async def ask(self, connection: Connection, http: HttpSide, *, is_new: bool, poll: bool) -> Listed:
        """Ask for the lists that are due, of a new connection for all; the others are as they were.

        Raises:
            GatewayError: the tools could not be listed.
        """
        kinds = self.due.take() | (connection.unannounced if poll else frozenset())
        before = None if is_new else self.last
        if before is None:
            kinds = frozenset(ListKind)
        started = time.monotonic()
        if before is None or ListKind.TOOLS in kinds:
            tools = await list_tools(connection, self._upstream_id, self._timeout, http)
            tools = await known_again(tools, self._tools) if self._tools else tools
        else:
            tools = before.tools
        self._offers = await list_offers(
            connection.session,
            kinds,
            self._offers,
            upstream_id=self._upstream_id,
            timeout=self._timeout * OFFERS_SHARE,
        )
        if tools is not self._tools:
            self._tools, self.tool_facts = tools, ToolFacts(tools)
        info = connection.session.server_info
        self.last = Listed(
            tools,
            listed_at=time.time(),
            era=connection.era,
            server_name=info.name if info else "",
            server_version=info.version if info else "",
            seconds=time.monotonic() - started,
            offers=self._offers,
            polled=poll and before is not None,
        )
        return self.last
