"""Tool calls to an HTTP upstream, each a POST outside the SDK's session, which would take four times the CPU.

The session still negotiates, lists, listens and closes. Calls use its protocol version, session id and headers.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import anyio.abc
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from pml_gateway.errors import UpstreamProtocolError, UpstreamUnavailableError
from pml_gateway.foreign_json import sound_error
from pml_gateway.json_text.reading import TooDeepError
from pml_gateway.log import get_logger
from pml_gateway.mcp.bodies import ACCEPTED_ENCODING, BodyError, events, unpacked
from pml_gateway.mcp.elicitation import TOLD, OpenCall
from pml_gateway.mcp.failures import unreachable
from pml_gateway.mcp.http import CREDENTIALS_ENDED, EVENTS, FIRST_REFUSAL, SESSION_HEADER, ConnectionFacts
from pml_gateway.mcp.network import Network
from pml_gateway.mcp.refusals import MAX_READ, HttpRefusal
from pml_gateway.mcp.session import (
    MAX_OPEN_REQUESTS,
    PROGRESS,
    OnNotice,
    PassthroughSession,
    report_progress,
    too_many,
)
from pml_gateway.mcp.tasks import STATUS_NOTICES, without_related_task
from pml_gateway.processes.messages import answer_in, read_value, understood
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

Respond = Callable[[JsonObject], Awaitable[None]]

MAX_RESUMPTIONS = 20
CANCEL_SECONDS = 2.0
IDLE_SECONDS = 4.0
"""Seconds after which an idle connection is closed. uvicorn and Node close theirs after 5: a call sent at that moment
fails, and may have run."""

_REDIRECTS = (307, 308)
"""The redirects that imply that nothing was executed; after any other, the request must not be repeated."""

_ids = itertools.count(1)


class CallStream:
    """A consumer of the messages on one call's stream; in its context, questions are answered concurrently."""

    def __init__(
        self,
        respond: Respond,
        session: PassthroughSession,
        on_progress: ProgressFnT | None,
        on_notice: OnNotice,
        call: OpenCall | None,
        token: str,
    ) -> None:
        self._respond = respond
        self._token = token
        self._session = session
        self._questions = session.questions
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._call = call
        self._asked: dict[anyio.CancelScope, str | int] = {}
        self._tasks: list[anyio.abc.TaskGroup] = []
        self.has_begun = False

    async def __aenter__(self) -> Self:
        if self._call is not None:
            self._tasks.append(await anyio.create_task_group().__aenter__())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for tasks in self._tasks:
            tasks.cancel_scope.cancel()
            # Without the error, which the group would wrap.
            await tasks.__aexit__(None, None, None)

    async def take(self, message: JsonObject) -> JsonObject | None:
        """Handle a message; return it if it is the answer to the call."""
        if "method" in message:
            self.has_begun = True
        match message:
            case {"method": "notifications/progress", "params": dict(progress)}:
                if progress.get("progressToken") != self._token:
                    await self._session.is_told(PROGRESS, progress)
                elif self._on_progress is not None:
                    await report_progress(progress, self._on_progress)
            case {"method": "notifications/cancelled", "params": {"requestId": str() | int() as request_id}}:
                for scope, asked in self._asked.items():
                    if asked == request_id:
                        scope.cancel()
            case {"method": "ping", "id": request_id}:
                await self._respond({"id": request_id, "result": {}})
            case {"method": str(), "id": str() | int() as request_id} if len(self._asked) >= MAX_OPEN_REQUESTS:
                await self._respond({"id": request_id, "error": too_many().model_dump(exclude_none=True)})
            case {"method": str(method), "id": str() | int() as request_id}:
                params = message.get("params")
                # Known before its task starts: many questions may come together, and one of them may be withdrawn.
                scope = anyio.CancelScope()
                self._asked[scope] = request_id
                question = (scope, request_id, method, params if isinstance(params, dict) else {})
                if self._tasks:
                    self._tasks[0].start_soon(self._answer, *question)
                else:
                    await self._answer(*question)
            case {"method": str(method), "params": dict(params)} if method in TOLD:
                await self._questions.tell(method, params, self._call)
            case {"method": str(method), "params": dict(params)} if method in STATUS_NOTICES:
                self._questions.note_task(params)
            case {"method": str(method)}:
                params = message.get("params")
                self._on_notice(method, params if isinstance(params, dict) else {})
            case {"result": _} | {"error": _}:
                return message
        return None

    async def ended_early(self) -> None:
        """Disconnect the client after the server ended the stream early; the client reconnects for the answer."""
        if self._call is not None:
            await self._call.audience.let_go()

    async def _answer(self, scope: anyio.CancelScope, request_id: str | int, method: str, params: JsonObject) -> None:
        with scope:
            try:
                try:
                    call = self._questions.call_of_task(params) or self._call
                    answer = await self._questions.answer(method, without_related_task(params), call)
                    body: JsonObject = {"result": answer}
                except MCPError as error:
                    body = {"error": error.error.model_dump(exclude_none=True)}
                await self._respond({"id": request_id, **body})
            except (aiohttp.ClientError, OSError) as error:
                # The call's own stream ends as well, or its deadline expires.
                logger.warning("an answer did not reach its server: %s", type(error).__name__)
            finally:
                del self._asked[scope]


class HttpCalls:
    """Tool calls to one connected HTTP upstream."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        url: str,
        session: PassthroughSession,
        http: ConnectionFacts,
        on_notice: OnNotice,
    ) -> None:
        self._client = client
        self._url = url
        self._session = session
        self._http = http
        self._on_notice = on_notice

    async def call_tool(
        self,
        params: JsonObject,
        *,
        on_progress: ProgressFnT | None,
        call: OpenCall | None = None,
    ) -> JsonObject:
        """Return the raw result of one `tools/call`; cancelling the caller cancels the request at the server.

        Raises:
            MCPError: the server's error.
            SessionUnknownError: the server refused the session.
            UpstreamUnavailableError: the connection failed; the details say if the call was executed.
        """
        request_id = f"pml-{next(_ids)}"
        body, headers = self._session.stamped("tools/call", params, call)
        body |= {"jsonrpc": "2.0", "id": request_id}
        if on_progress is not None:
            body["params"]["_meta"] = {**body["params"].get("_meta", {}), "progressToken": request_id}
        stream = CallStream(self._respond, self._session, on_progress, self._on_notice, call, request_id)
        try:
            # Some servers report progress on the session's stream.
            with self._session.reporting(request_id, on_progress):
                message = await self._post(body, headers, stream)
        except anyio.get_cancelled_exc_class():
            await self._cancel(request_id)
            raise
        except aiohttp.ClientConnectorError as exc:
            raise unreachable(exc) from exc
        except BodyError as exc:
            raise UpstreamProtocolError(str(exc)) from exc
        except (aiohttp.ClientError, OSError) as exc:
            reason = f"the connection failed during the call ({type(exc).__name__})"
            raise UpstreamUnavailableError(reason, details={"executed": "unknown"}) from exc
        if message is None:
            # The SDK follows redirects; nothing was executed.
            return await self._session.send_raw("tools/call", params, timeout=None, on_progress=on_progress, call=call)
        if (error := sound_error(message.get("error"))) is not None:
            failure = MCPError(error["code"], error["message"], error["data"])
            names_request = message.get("id") == request_id
            refusal = HttpRefusal.of_error(failure, names_request=names_request, has_begun=stream.has_begun)
            await self._session.raise_if_forgotten(refusal, "tools/call")
            raise failure
        return _result(message)

    async def _post(
        self, body: JsonObject, headers: Mapping[str, str], stream: CallStream, *, is_repeated: bool = False
    ) -> JsonObject | None:
        content = to_json(body)
        sent = await self._headers(headers)
        async with self._client.post(self._url, data=content, headers=sent, allow_redirects=False) as response:
            if response.status >= FIRST_REFUSAL:
                refusal = await _refusal(response, body["id"])
                # A server that requires a new token executed nothing.
                is_ended = response.status == CREDENTIALS_ENDED and not is_repeated
                if is_ended and await self._http.renewed(sent.get("authorization")):
                    return await self._post(body, headers, stream, is_repeated=True)
                await self._session.raise_if_forgotten(refusal, "tools/call")
                raise await self._http.refusal(refusal.status, refusal.challenge, refusal.said) or refusal.as_error()
            if response.status in _REDIRECTS:
                return None
            if response.status >= 300:
                raise UpstreamProtocolError(
                    f"the server answered with a redirect (HTTP {response.status}), which no call follows",
                    hint="use the address it redirects to",
                )
            if response.content_type == EVENTS:
                async with stream:
                    return await self._from_events(response, body["id"], headers, stream)
            message = await _message(await _read(response, self._http.max_bytes))
            if _is_for_another(message, body["id"]):
                raise UpstreamProtocolError(f"the answer is to request {str(message['id'])[:40]!r}, not to this one")
            return message

    async def _from_events(
        self, response: aiohttp.ClientResponse, request_id: str, headers: Mapping[str, str], stream: CallStream
    ) -> JsonObject:
        """Read the answer from the events; a server may end the stream and have the rest fetched by event id."""
        last_id, pause = "", 1.0
        try:
            for _ in range(MAX_RESUMPTIONS):
                pieces = unpacked(response.content.iter_any(), _encoding(response), None)
                async for event in events(pieces, self._http.max_bytes):
                    last_id, pause = event.id or last_id, event.retry_seconds or pause
                    answer = await stream.take(await _message(event.data)) if event.data else None
                    if answer is not None and not _is_for_another(answer, request_id):
                        return answer
                if not last_id:
                    break
                await stream.ended_early()
                await anyio.sleep(pause)
                resumed = {**await self._headers(headers), "accept": "text/event-stream", "last-event-id": last_id}
                response.close()
                response = await self._client.get(self._url, headers=resumed, allow_redirects=False)
                if response.status >= FIRST_REFUSAL:
                    refusal = replace(await _refusal(response, request_id), has_begun=True)
                    await self._session.raise_if_forgotten(refusal, "tools/call")
                if response.status != 200:
                    # A refusal of the rest says nothing about the call, which was already running.
                    raise UpstreamUnavailableError(
                        f"the stream ended before the answer, and its rest was refused with HTTP {response.status}",
                        details={"http_status": response.status, "executed": "unknown"},
                    )
        finally:
            response.close()
        raise UpstreamUnavailableError("the stream ended before the answer", details={"executed": "unknown"})

    async def _respond(self, body: JsonObject) -> None:
        content = to_json({"jsonrpc": "2.0", **body})
        headers = await self._headers({"mcp-protocol-version": str(self._session.protocol_version)})
        async with self._client.post(self._url, data=content, headers=headers, allow_redirects=False):
            return

    async def _cancel(self, request_id: str) -> None:
        """Cancel a request at a handshake server; in the modern protocol, closing the request is the signal."""
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        params = {"requestId": request_id, "reason": "cancelled by the client"}
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            await self._session.notify_raw("notifications/cancelled", params)

    async def _headers(self, stamped: Mapping[str, str]) -> dict[str, str]:
        session = {SESSION_HEADER: self._http.session_id} if self._http.session_id else {}
        if self._http.cookies:
            session["cookie"] = "; ".join(f"{name}={value}" for name, value in self._http.cookies.items())
        return {
            "accept": "application/json, text/event-stream",
            "accept-encoding": ACCEPTED_ENCODING,
            "content-type": "application/json",
            **session,
            **stamped,
            **await self._http.headers(),
        }


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    pieces = unpacked(response.content.iter_any(), _encoding(response), max_bytes)
    return b"".join([piece async for piece in pieces])


def _encoding(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("content-encoding", "")


async def _message(content: bytes) -> JsonObject:
    value = answer_in(await _value(content))
    if not isinstance(value, dict):
        raise UpstreamProtocolError("the answer is no JSON-RPC message")
    return understood(value) or value


async def _value(content: bytes) -> Any:
    try:
        return await read_value(content)
    except TooDeepError as error:
        raise UpstreamProtocolError(f"the answer is {error}") from None
    except ValueError:
        raise UpstreamProtocolError(f"the answer is not JSON: {content[:80]!r}") from None


def _is_for_another(answer: JsonObject, request_id: str) -> bool:
    """Return True if it is the result of another request; errors often carry no or a wrong id."""
    return "result" in answer and answer.get("id") not in (None, request_id)


def _result(message: JsonObject) -> JsonObject:
    result = message.get("result")
    if not isinstance(result, dict):
        raise UpstreamProtocolError("the answer has neither a result nor an error")
    return result


async def _refusal(response: aiohttp.ClientResponse, request_id: str) -> HttpRefusal:
    headers = {name.lower(): ", ".join(response.headers.getall(name)) for name in response.headers}
    try:
        body = await _read(response, MAX_READ)
    except (BodyError, aiohttp.ClientError):
        body = b""
    return HttpRefusal.of_answer(response.status, headers, body, request_id)


@asynccontextmanager
async def open_http_calls(
    url: str,
    headers: Mapping[str, str],
    session: PassthroughSession,
    http: ConnectionFacts,
    network: Network,
    *,
    connect_timeout: float,
    on_notice: OnNotice,
) -> AsyncIterator[Callable[..., Awaitable[JsonObject]]]:
    """Yield the function that calls tools of an HTTP upstream: directly, or through the session if there is a proxy."""
    if network.has_proxy:
        yield lambda params, *, on_progress, call=None: session.send_raw(
            "tools/call", params, timeout=None, on_progress=on_progress, call=call
        )
        return
    # The same certificate authorities as in the SDK's client.
    connector = aiohttp.TCPConnector(ssl=network.ssl_context(), limit=0, keepalive_timeout=IDLE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as client:
        yield HttpCalls(client, url, session, http, on_notice).call_tool
