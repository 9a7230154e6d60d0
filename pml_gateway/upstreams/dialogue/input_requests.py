"""Questions of a server of 2026-07-28, which come as a member of its results, and their answers."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.errors import ErrorCode, UpstreamError
from pml_gateway.mcp.deadlines import paused, running
from pml_gateway.mcp.elicitation import OpenCall
from pml_gateway.types import JsonObject


class QuestionRefusedError(UpstreamError):
    """The client answered an upstream's question with an error."""

    code = ErrorCode.CANCELLED


async def answers_to(requests: JsonObject, call: OpenCall) -> JsonObject:
    """Ask the client of a call all these questions at once, and return its answers by their keys.

    Raises:
        QuestionRefusedError: the client does not support one of them, or refused or failed to answer it.
    """
    answers: JsonObject = {}
    refusals: list[MCPError] = []

    async def ask(key: str, request: Any) -> None:
        try:
            answers[key] = await call.answer(*_question(request))
        except MCPError as error:
            refusals.append(error)
            tasks.cancel_scope.cancel()

    with paused(running()):
        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(ask, key, request)
    if refusals:
        raise QuestionRefusedError(
            f"the server asked its user something, and the client refused: {refusals[0].message}",
            details={"jsonrpc_code": refusals[0].code},
        )
    return answers


def _question(request: Any) -> tuple[str, JsonObject]:
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        raise MCPError(METHOD_NOT_FOUND, "a question without a method")
    params = request.get("params")
    return request["method"], dict(params) if isinstance(params, dict) else {}
