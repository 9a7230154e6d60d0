"""The operations of the owner: one table, asked by commands over the attach socket or in a gateway of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from pml_gateway.config.advice import intent_sources
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.owner.calls import call, describe
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.listings import explain, tools
from pml_gateway.owner.searches import schema, search
from pml_gateway.owner.starts import start
from pml_gateway.owner.tokens import tokens, watch_tokens
from pml_gateway.policy.client import LOCAL
from pml_gateway.reports.status import PROGRESS_SECONDS, tell_waiting
from pml_gateway.secrets.known import without_known_secrets
from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Args:
        run: what it does with the arguments of a command.
        is_of_all: whether its answer is about every server, so that those without known tools are named.
        lists: whether its answer depends on an intent, so that it is said where none is configured.
    """

    run: Callable[[OperationContext, JsonObject], Awaitable[JsonObject]]
    is_of_all: bool = False
    lists: bool = False


OPERATIONS = {
    "call": Operation(call),
    "describe": Operation(describe),
    "search": Operation(search, is_of_all=True),
    "schema": Operation(schema, is_of_all=True),
    "tools": Operation(tools, is_of_all=True, lists=True),
    "explain": Operation(explain, lists=True),
    "tokens": Operation(tokens, is_of_all=True),
    "watch_tokens": Operation(watch_tokens),
    "start": Operation(start),
}


async def perform(
    name: str, arguments: JsonObject, context: OperationContext, warnings: Sequence[str] = ()
) -> JsonObject:
    """Run an operation; its `result` or `error`, and what to warn of.

    Args:
        name: that of the operation.
        arguments: what it is given.
        context: what it works with.
        warnings: those of the configuration; servers without tools are added.
    """
    operation, gateway = OPERATIONS[name], context.gateway
    lists_by_intent = operation.lists and bool(arguments.get("lists_by_intent"))
    unsaid = () if lists_by_intent else intent_sources(gateway.state.settings)
    said = [warning for warning in warnings if warning not in unsaid]
    if not gateway.knows_tools:
        async with telling(context):
            slowest = max((upstream.longest_start for upstream in gateway.pool.upstreams.values()), default=0.0)
            await gateway.refresh(slowest + 1)
    if operation.is_of_all:
        await gateway.first_lists(gateway.state.view(LOCAL))
        said += _without_tools(gateway)
    told = {"warnings": without_known_secrets(said)}
    try:
        return {"result": await operation.run(context, arguments), **told}
    except GatewayError as error:
        # The command knows none of the secrets.
        return {"error": without_known_secrets(error.as_json()), "exit": error.exit_code, **told}


def _without_tools(gateway: Gateway) -> list[str]:
    """Name the servers whose tools are missing in an answer."""
    unlisted, starting = gateway.unlisted(), gateway.state.starting
    unknown = [each for each in unlisted if each not in starting]
    said = [f"{', '.join(starting)}: still starting, ask again in a few seconds"] if starting else []
    if unknown:
        said.append(f"nothing is known of the tools of {', '.join(unknown)}; pml upstreams --probe says why")
    return said


@asynccontextmanager
async def telling(context: OperationContext) -> AsyncIterator[None]:
    """Tell meanwhile which servers are waited for, and once of each that it is installed first."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell_waiting, context.gateway, lambda text: context.tell({"progress": text}))
        tasks.start_soon(_tell_of_installations, context)
        yield
        tasks.cancel_scope.cancel()


async def _tell_of_installations(context: OperationContext) -> None:
    """Report installations, which take longer than people expect."""
    told: set[str] = set()
    while True:
        for name, upstream in context.gateway.pool.upstreams.items():
            if name not in told and (progress := upstream.installing) is not None:
                told.add(name)
                context.tell({"note": f"{progress.message}; it goes on if you interrupt this"})
        await anyio.sleep(PROGRESS_SECONDS)
