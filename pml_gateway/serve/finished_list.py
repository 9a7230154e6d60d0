"""The finished `tools/list`: kept as bytes, and sent past the SDK, which would parse, check and write it each time.

1. The SDK answers with `EMPTY`, an empty list, once it has checked the request, and checks that answer.
2. `fill` finds the client's finished list. Transports that write JSON themselves get it as objects in that answer; over
   stdio it is an `Unwritten` list there, whose bytes `ListsSent` has written instead.
3. Over HTTP the answer stays empty and the list is left in the request's scope; `spliced` puts its bytes into the body
   on its way out, and corrects the length that the headers promise.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import mcp_types
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCResponse
from pydantic import PrivateAttr
from starlette.types import Message

from pml_gateway.gateway.events import Listed
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, RequestScope, list_intent
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.mcp.sdk import TappedSend
from pml_gateway.types import JsonObject

# Lists change without notice whenever their owner wants, so that none may be kept.
EMPTY = mcp_types.ListToolsResult(tools=[], ttl_ms=0, cache_scope="public")
_EMPTY_JSON = b'"tools":[]'


over_stdio: ContextVar[bool] = ContextVar("pml_gateway_over_stdio", default=False)
"""Whether what is answered is sent by `ListsSent`."""


class Unwritten(list[JsonObject]):
    """An empty list in the place of a finished one."""

    def __init__(self, tools_json: bytes) -> None:
        super().__init__()
        self.tools_json = tools_json


class _Spliced(JSONRPCResponse):
    _tools_json: str = PrivateAttr("[]")

    def model_dump_json(self, **options: Any) -> str:
        return super().model_dump_json(**options).replace('"tools":[]', f'"tools":{self._tools_json}', 1)


class ListsSent(TappedSend):
    """What a client is sent, with the bytes of finished lists in their places."""

    __slots__ = ()

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        message = item.message
        if isinstance(message, JSONRPCResponse) and isinstance(tools := message.result.get("tools"), Unwritten):
            spliced = _Spliced(jsonrpc=message.jsonrpc, id=message.id, result=message.result)
            spliced._tools_json = tools.tools_json.decode()
            item = replace(item, message=spliced)
        await super().send(item)


async def fill(gateway: Gateway, ctx: Context, answer: JsonObject) -> JsonObject:
    """The checked, empty answer with the finished list, or with that list to be spliced in."""
    scope, asked_at = ctx.scope, anyio.current_time()
    intent = list_intent(ctx.params, scope, gateway.state.settings.gateway)
    finished = await list_tools(gateway, scope, intent, ctx.protocol_version)
    if scope.focus is not None:
        # Not before: what this changes about the list is told by a notice of its own.
        scope.focus.listed(asked_at)
    if "cacheScope" in answer and (intent is not None or gateway.state.settings.clients):
        answer = {**answer, "cacheScope": "private"}
    gateway.events.publish(
        Listed(gateway.state, scope, intent, finished.tools_json, finished.digest, ctx.protocol_version)
    )
    if scope.accepts_bytes:
        scope.tools_json = finished.tools_json
        return answer
    if over_stdio.get():
        return {**answer, "tools": Unwritten(finished.tools_json)}
    return {**answer, "tools": await anyio.to_thread.run_sync(finished.decoded)}


def spliced(message: Message, scope: RequestScope) -> Message:
    """One message of an HTTP response, with the request's finished list where it has one that is not sent yet."""
    if scope.tools_json is None:
        return message
    if message["type"] == "http.response.start":
        return {**message, "headers": _lengthened(message["headers"], len(scope.tools_json) - len(b"[]"))}
    if _EMPTY_JSON not in message.get("body", b""):
        return message
    message = {**message, "body": message["body"].replace(_EMPTY_JSON, b'"tools":' + scope.tools_json, 1)}
    scope.tools_json = None
    return message


def _lengthened(headers: list[tuple[bytes, bytes]], added: int) -> list[tuple[bytes, bytes]]:
    return [
        (name, str(int(value) + added).encode()) if name == b"content-length" else (name, value)
        for name, value in headers
    ]
