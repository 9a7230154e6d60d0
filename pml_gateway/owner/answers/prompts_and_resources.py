"""Prompts and resources of the servers: listed, got and read."""

from __future__ import annotations

from typing import cast

from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.request import CallOptions
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import GotPrompt, ListedOffers, ReadResource
from pml_gateway.policy.principal import LOCAL
from pml_gateway.results.answers import check_uri
from pml_gateway.secrets.known import without_secrets


async def offers(context: OperationContext, kinds: list[str]) -> ListedOffers:
    """Return what the servers offer of each kind, errors of servers that could not be asked, and how many there are."""
    await context.listed_now()
    found = (await context.gateway.wait_for_tools()).view(LOCAL).offers
    listed = {
        kind: [{"server": each.upstream_id, **each.definition} for each in found.listed(OfferKind(kind))]
        for kind in kinds
    }
    upstreams = context.gateway.pool.upstreams
    failed = {
        name: without_secrets(str(each.connector.last_error))
        for name, each in upstreams.items()
        if each.connector.last_error is not None
    }
    return {"listed": listed, "failed": failed, "servers": len(upstreams)}


async def prompt(context: OperationContext, name: str, arguments: dict[str, str]) -> GotPrompt:
    """Return the messages of a prompt.

    Raises:
        InvalidInputError: no server offers it.
    """
    await context.listed_now()
    offer = (await context.gateway.wait_for_tools()).view(LOCAL).offers.find(OfferKind.PROMPT, name)
    if offer is None:
        raise _unknown(OfferKind.PROMPT, name)
    params = {"name": offer.name, "arguments": arguments}
    result = await ask_upstream(context.gateway, offer.upstream_id, "prompts/get", params, CallOptions())
    return cast("GotPrompt", result)


async def resource(context: OperationContext, uri: str) -> ReadResource:
    """Return the contents of a resource.

    Raises:
        InvalidInputError: no server offers it.
    """
    check_uri(uri)
    await context.listed_now()
    routes = (await context.gateway.wait_for_tools()).view(LOCAL).offers.routes(uri)
    if not routes:
        raise _unknown(OfferKind.RESOURCE, uri)
    route, params = routes[0], {"uri": routes[0].uri}
    result = await ask_upstream(context.gateway, route.upstream_id, "resources/read", params, CallOptions())
    return cast("ReadResource", result)


def _unknown(kind: OfferKind, name: str) -> GatewayError:
    return InvalidInputError(f"no server offers {name!r}", hint=f"pml {kind} lists all there are")
