"""A connected upstream's prompts, resources, templates, instructions and abilities become its offers."""

from __future__ import annotations

from collections.abc import Collection

from mcp.shared.exceptions import MCPError
from mcp_types import ServerCapabilities
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.listing import ListKind, Offers
from pml_gateway.upstreams.pages import all_pages
from pml_gateway.upstreams.session import PassthroughSession
from pml_gateway.upstreams.translate import translate

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
