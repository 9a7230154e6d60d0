"""Requests for the lists of one upstream with all their pages, and the facts of tools that calls need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.errors import GatewayError, UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.listing import ListKind, Offers
from pml_gateway.mcp.negotiation import HANDSHAKE
from pml_gateway.mcp.session import PassthroughSession
from pml_gateway.skills.folders import SKILLS
from pml_gateway.types import JsonObject, is_idempotent
from pml_gateway.upstreams.pages import Pages, all_pages

logger = get_logger(__name__)

MAX_INSTRUCTIONS = 20_000
"""Maximum characters of a server's instructions that are kept; clients get fewer."""

MAX_SKILLS = 2000
"""Maximum skills of one server; each is encoded for the search."""

OFFERS_SHARE = 0.2
"""Share of the connect timeout for each list other than tools, so that a list that never arrives costs no tools."""


class FaultyListError(UpstreamProtocolError):
    """A list that is cut off, or never ends."""


class ToolFacts:
    """Facts of tools for sending calls.

    Those are arguments that are also sent as headers, tools that may be called twice, and tools that may or only do run
    as tasks (`optional`, `required`).
    """

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}
        self.repeatable = frozenset(str(tool.get("name")) for tool in tools if is_idempotent(tool.get("annotations")))
        self.task_support = {str(tool.get("name")): support for tool in tools if (support := _task_support(tool))}

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """Return the property paths of a tool annotated with `x-mcp-header`, each with its header token."""
        if name not in self._input_schemas:
            return {}
        known = self._header_maps.get(name)
        if known is None:
            schema = self._input_schemas[name]
            known = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
            self._header_maps[name] = known
        return known


def _task_support(tool: JsonObject) -> str:
    execution = tool.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return str(support) if support in ("optional", "required") else ""


async def list_tools(connection: Connection, upstream_id: str, timeout: float) -> Pages:
    """Fetch all tools, as the upstream sent them, within `timeout` seconds.

    Raises:
        GatewayError: there was no answer, or it was not a list.
    """
    session = connection.session
    if not session.peer_capabilities.offers("tools") and connection.era == HANDSHAKE:
        return Pages(())
    return await all_pages(session, "tools/list", "tools", upstream_id=upstream_id, timeout=timeout)


async def list_whole(connection: Connection, upstream_id: str, timeout: float) -> tuple[tuple[JsonObject, ...], Offers]:
    """Fetch tools and all other lists in a session of one client.

    Nothing is used if a list failed or was faulty: the result would differ from the common list only because of that.

    Raises:
        GatewayError: a list failed, or was faulty.
    """

    def take(_kind: ListKind, pages: Pages) -> None:
        if pages.fault:
            raise FaultyListError(pages.fault)

    tools = await list_tools(connection, upstream_id, timeout)
    take(ListKind.TOOLS, tools)
    offers = await list_offers(
        connection.session,
        frozenset(ListKind),
        Offers(),
        upstream_id=upstream_id,
        timeout=timeout * OFFERS_SHARE,
        on_pages=take,
        is_strict=True,
    )
    return tools.entries, offers


async def list_offers(
    session: PassthroughSession,
    kinds: Collection[ListKind],
    known: Offers,
    *,
    upstream_id: str,
    timeout: float,
    on_pages: Callable[[ListKind, Pages], None],
    is_strict: bool = False,
) -> Offers:
    """Fetch prompts, resources, templates and skills; lists that are not among `kinds`, or fail, stay as in `known`.

    `on_pages` gets each, also if it is faulty, lacks some definitions, or is the previous one.
    Errors of the upstream are only raised if `is_strict`: tools do not depend on these lists.
    """
    capabilities = session.peer_capabilities

    async def listed(kind: ListKind, method: str, key: str, before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        if not capabilities.offers(kind):
            return ()
        if kind not in kinds:
            return before
        try:
            pages = await all_pages(session, method, key, upstream_id=upstream_id, timeout=timeout)
        except GatewayError as error:
            if error.details.get("jsonrpc_code") == METHOD_NOT_FOUND:
                return ()
            if is_strict:
                raise
            pages = Pages(before, error.message)
        on_pages(kind, pages)
        return pages.completed(before, key)

    return Offers(
        prompts=await listed(ListKind.PROMPTS, "prompts/list", "prompts", known.prompts),
        resources=await listed(ListKind.RESOURCES, "resources/list", "resources", known.resources),
        templates=await listed(ListKind.RESOURCES, "resources/templates/list", "resourceTemplates", known.templates),
        skills=(
            (await listed(ListKind.RESOURCES, "skills/list", "skills", known.skills))[:MAX_SKILLS]
            if capabilities.has_extension(SKILLS)
            else ()
        ),
        instructions=(session.instructions or "")[:MAX_INSTRUCTIONS],
        capabilities=capabilities,
    )
