"""`pml prompts`, `resources`: what the servers offer beside tools, listed, got and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import note, print_json, print_table, say, warn
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.catalog.prompts_and_resources import OfferKind
    from pml_gateway.types import JsonObject


def prompts(
    name: Annotated[str | None, typer.Argument(help="Get this prompt instead of listing all.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="One argument of the prompt.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the prompts of every server, or get one.

    Example: pml prompts review --arg language=python
    """
    command = Command(config, as_json=as_json)
    pairs = [pair.partition("=") for pair in argument or ()]
    if any(not separator for _, separator, _ in pairs):
        raise typer.BadParameter("--arg takes NAME=VALUE")
    if name is None:
        _list(command, ("prompt", "server", "arguments", "description"), ("prompts",), "prompts")
        return
    params: JsonObject = {"name": name, "arguments": {key: value for key, _, value in pairs}}
    result = command.run(lambda: _get_prompt(command, params))
    if as_json:
        print_json(result)
        return
    for message in result.get("messages", ()):
        say(f"{message.get('role')}:", style="bold")
        _say_content(message.get("content") or {})


def resources(
    uri: Annotated[str | None, typer.Argument(help="Read this resource instead of listing all.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the resources and resource templates of every server, or read one.

    Example: pml resources file:///notes.txt
    """
    command = Command(config, as_json=as_json)
    if uri is None:
        _list(command, ("resource", "server", "type", "description"), ("resources", "templates"), "resources")
        return
    result = command.run(lambda: _read_resource(command, uri))
    if as_json:
        print_json(result)
        return
    for contents in result.get("contents", ()):
        _say_content({"type": "resource", "resource": contents})


def _list(command: Command, columns: tuple[str, ...], kinds: tuple[str, ...], what: str) -> None:
    listed, failed, asked = command.run(lambda: _offers(command, kinds))
    if command.as_json:
        print_json(listed)
        return
    rows = [
        (row.get("name") if kind == "prompts" else row.get("uri") or row["uriTemplate"], row["server"], *_facts(row))
        for kind in kinds
        for row in listed[kind]
    ]
    if rows:
        print_table(columns, rows)
    else:
        _say_none(what, failed, asked)


def _say_none(what: str, failed: dict[str, str], asked: int) -> None:
    """Return why the list is empty, and the remedy."""
    note(f"no {what}: {asked - len(failed)} of {counted(asked, 'server')} answered, with none that is allowed")
    for reason in failed.values():
        warn(reason)
    note("pml doctor says what to do about it" if failed else "pml upstreams lists what each server offers")


def _facts(row: JsonObject) -> tuple[str, str]:
    arguments = ", ".join(f"{each['name']}{'' if each.get('required') else '?'}" for each in row.get("arguments", ()))
    return arguments or str(row.get("mimeType", "")), str(row.get("description") or row.get("title") or "")


def _say_content(content: JsonObject) -> None:
    resource = content.get("resource") or {}
    text = content.get("text", resource.get("text"))
    say(
        text
        if isinstance(text, str)
        else f"[{content.get('type')} {content.get('mimeType', resource.get('mimeType', ''))}]"
    )


async def _offers(command: Command, kinds: tuple[str, ...]) -> tuple[JsonObject, dict[str, str], int]:
    """Offers, errors of servers that could not be asked, and the number of servers to ask."""
    from pml_gateway.catalog.prompts_and_resources import OfferKind
    from pml_gateway.policy.client import LOCAL

    async with command_gateway(command, connect=True) as gateway:
        offers = (await gateway.wait_for_tools()).view(LOCAL).offers
        listed = {
            kind: [{"server": each.upstream_id, **each.definition} for each in offers.listed(OfferKind(kind))]
            for kind in kinds
        }
        upstreams = gateway.pool.upstreams
        failed = {name: str(each.last_error) for name, each in upstreams.items() if each.last_error is not None}
        return listed, failed, len(upstreams)


async def _get_prompt(command: Command, params: JsonObject) -> JsonObject:
    from pml_gateway.catalog.prompts_and_resources import OfferKind
    from pml_gateway.gateway.calling import ask_upstream
    from pml_gateway.gateway.request import CallOptions
    from pml_gateway.policy.client import LOCAL

    async with command_gateway(command, connect=True) as gateway:
        kind = OfferKind.PROMPT
        offer = (await gateway.wait_for_tools()).view(LOCAL).offers.find(kind, params["name"])
        if offer is None:
            raise _unknown(kind, params["name"])
        return await ask_upstream(
            gateway, offer.upstream_id, "prompts/get", {**params, "name": offer.name}, CallOptions()
        )


async def _read_resource(command: Command, uri: str) -> JsonObject:
    from pml_gateway.catalog.prompts_and_resources import OfferKind
    from pml_gateway.gateway.answers import check_uri
    from pml_gateway.gateway.calling import ask_upstream
    from pml_gateway.gateway.request import CallOptions
    from pml_gateway.policy.client import LOCAL

    check_uri(uri)
    async with command_gateway(command, connect=True) as gateway:
        routes = (await gateway.wait_for_tools()).view(LOCAL).offers.routes(uri)
        if not routes:
            raise _unknown(OfferKind.RESOURCE, uri)
        return await ask_upstream(
            gateway, routes[0].upstream_id, "resources/read", {"uri": routes[0].uri}, CallOptions()
        )


def _unknown(kind: OfferKind, name: str) -> GatewayError:
    return InvalidInputError(f"no server offers {name!r}", hint=f"pml {kind} lists all there are")
