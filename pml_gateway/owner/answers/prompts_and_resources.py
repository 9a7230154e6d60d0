"""Prompts, resources and skills of the servers: listed, got and read."""

from __future__ import annotations

from typing import cast

import anyio.to_thread

from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.catalog.skills import skill_description, skill_files, skill_name
from pml_gateway.errors import GatewayError, InvalidInputError, ToolHeldBackError
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.request import CallOptions
from pml_gateway.meta.skills import skill_file
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import GotPrompt, ListedOffers, ListedSkill, ListedSkills, ReadResource
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.doctor.configuration import skill_faults
from pml_gateway.results.answers import check_uri
from pml_gateway.secrets.known import without_secrets
from pml_gateway.text import did_you_mean, nearest
from pml_gateway.working_directory import WorkingDirectory


async def offers(context: OperationContext, kinds: list[str]) -> ListedOffers:
    """Return what the servers offer of each kind, errors of servers that could not be asked, and how many there are."""
    await context.listed_now()
    found = (await context.gateway.wait_for_tools()).view(LOCAL).offers
    listed = {
        kind: [{"server": each.upstream_id, **each.definition} for each in found.listed(OfferKind(kind))]
        for kind in kinds
    }
    return {"listed": listed, "failed": _failed(context), "servers": len(context.gateway.pool.upstreams)}


def _failed(context: OperationContext) -> dict[str, str]:
    return {
        name: without_secrets(str(each.connector.last_error))
        for name, each in context.gateway.pool.upstreams.items()
        if each.connector.last_error is not None
    }


async def skills(context: OperationContext) -> ListedSkills:
    """Return the skills of all servers, and what keeps others in the owner's folders from being served."""
    await context.listed_now()
    view = (await context.gateway.wait_for_tools()).view(LOCAL)
    listed: list[ListedSkill] = [
        {
            "name": skill_name(skill),
            "server": skill.upstream_id,
            "description": skill_description(skill),
            "uri": uri,
            "files": [view.catalog.offers.public_uri(skill.upstream_id, each) for each in skill_files(skill)],
        }
        for uri, skill in view.skills.items()
    ]
    faults = await anyio.to_thread.run_sync(skill_faults, context.gateway.state.settings, WorkingDirectory.here())
    return {
        "skills": listed,
        "faults": [str(fault) for fault in faults],
        "failed": _failed(context),
        "servers": len(context.gateway.pool.upstreams),
    }


async def skill(context: OperationContext, name: str) -> ReadResource:
    """Return the contents of a file of a skill: its SKILL.md, unless `name` is a URI or a path of another.

    Raises:
        GatewayError: there is none, or there are several of this name.
    """
    await context.listed_now()
    view = (await context.gateway.wait_for_tools()).view(LOCAL)
    file = skill_file(view, name)
    if file is None:
        near = did_you_mean(nearest(name, map(skill_name, view.skills.values())))
        raise InvalidInputError(f"no skill is named {name!r}", hint=near or "pml skills lists all there are")
    return await resource(context, file.uri)


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
    offers = (await context.gateway.wait_for_tools()).view(LOCAL).offers
    routes = offers.routes(uri)
    if not routes and offers.holds_back(uri):
        raise ToolHeldBackError(uri)
    if not routes:
        raise _unknown(OfferKind.RESOURCE, uri)
    route, params = routes[0], {"uri": routes[0].uri}
    result = await ask_upstream(context.gateway, route.upstream_id, "resources/read", params, CallOptions())
    return cast("ReadResource", result)


def _unknown(kind: OfferKind, name: str) -> GatewayError:
    return InvalidInputError(f"no server offers {name!r}", hint=f"pml {kind} lists all there are")
