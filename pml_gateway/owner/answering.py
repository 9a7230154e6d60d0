"""Answering an operation that a command asks for: its arguments checked, its result or error, and progress."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, validate_call

from pml_gateway.config.findings import Area, Finding, in_brief
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.log import get_logger
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.operations import OPERATIONS, OfGateway, OfProcess, encoded
from pml_gateway.owner.process import ServingProcess
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.status import PROGRESS_SECONDS, tell_waiting
from pml_gateway.secrets.known import without_known_secrets
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

Run = Callable[..., Awaitable[Any]]

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


class AskedOperation(BaseModel):
    """The operation in the first line of a command."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: dict[str, Any] = Field(default={}, repr=False)

    @classmethod
    def read(cls, line: bytes) -> AskedOperation | None:
        """Return the operation in a first line; None if the line is malformed."""
        try:
            return cls.model_validate(json.loads(line)["operation"])
        except (ValueError, RecursionError):
            return None


def error_answer(error: GatewayError) -> JsonObject:
    """Return the answer for an error, without secrets: the command knows none of them."""
    return {"error": without_known_secrets(error.as_json()), "exit": error.exit_code}


MALFORMED = error_answer(UsageError("one line with a JSON object that names an operation is expected"))


async def answer_of(
    asked: AskedOperation, target: OperationContext | ServingProcess, warnings: Sequence[Finding] = ()
) -> JsonObject:
    """Return the answer of an operation: its `result`, or an `error`; with the warnings of the configuration."""
    told: JsonObject = {}
    try:
        match OPERATIONS.get(asked.name), target:
            case OfProcess(name), ServingProcess():
                if (run := getattr(target, name, None)) is None:
                    raise GatewayError(f"process {os.getpid()} is not shared by clients, and ends as it was started")
                return {"result": await _called(run, asked)}
            case OfGateway() as operation, OperationContext():
                told = {"warnings": without_known_secrets(await _warnings(operation, target, asked, warnings))}
                return {"result": encoded(await _called(operation.run, asked, target)), **told}
        known = ", ".join(OPERATIONS)
        raise UsageError(f"unknown operation {asked.name!r}; known are {known}", hint="pml restart, if pml was changed")
    except GatewayError as error:
        return {**error_answer(error), **told}
    # A bug in one operation must not end the gateway.
    except Exception as raised:
        logger.exception("%s failed", asked.name)
        return error_answer(
            GatewayError(f"{asked.name} failed ({type(raised).__name__})", hint="the gateway's log says more")
        )


def _called(run: Run, asked: AskedOperation, *given: OperationContext) -> Awaitable[Any]:
    """Return the running operation once its arguments are checked against its signature."""

    @wraps(run)
    def begin(*positional: Any, **named: Any) -> Awaitable[Any]:
        return run(*positional, **named)

    try:
        return validate_call(config=STRICT)(begin)(*given, **asked.arguments)
    except ValidationError as error:
        # The error's own text would show the given values.
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(f"this cannot be asked: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def _warnings(
    operation: OfGateway[Any], context: OperationContext, asked: AskedOperation, warnings: Sequence[Finding]
) -> list[str]:
    """Return the warnings for an answer, once the gateway knows the tools that it needs for it."""
    gateway = context.gateway
    lists_by_intent = operation.lists and not asked.arguments.get("query") and asked.arguments.get("as_client", True)
    said = in_brief(warnings)
    if lists_by_intent:
        said += [str(warning) for warning in warnings if warning.area is Area.INTENT]
    if not gateway.state.knows_tools and operation.waits:
        async with telling(context):
            await context.listed_now()
    if operation.is_of_all:
        await gateway.first_lists(gateway.state.view(LOCAL))
        said += _without_tools(gateway)
    return said


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
            if name not in told and (progress := upstream.connector.installing) is not None:
                told.add(name)
                context.tell({"note": f"{progress.message}; it goes on if you interrupt this"})
        await anyio.sleep(PROGRESS_SECONDS)
