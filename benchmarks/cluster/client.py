"""One client of the replicas: requests, answers to questions, sessions opened anew, and what became of each request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from benchmarks.client import AnswerError, Client, Era
from benchmarks.cluster.server import TASKS
from benchmarks.cluster.stand import SERVED_BY, client_key
from pml_gateway.errors import ErrorCode

RESULT = "result"
CONNECTION = "connection error"
SESSION_LOST = "session lost"
RETRYABLE = "try again"
"""The outcome of a request that Redis or its lack failed, and that says so."""

UNTYPED = "no typed error"
TYPED = frozenset(code.value for code in ErrorCode) - {ErrorCode.INTERNAL.value}
INTERNAL_ERROR = -32603
REQUEST_SECONDS = 60.0
"""Longer than a replica is paused."""

CANCELLED_SECONDS = 10.0
"""Time for a request to end after the notification that it is given up."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers the request of a server."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
NOT_FOLLOWED = "not followed"

CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
MARK = re.compile(r"mark-\d\d")

_HANDLES = (
    (re.compile(r"\b(ref|task)_[\w~-]+"), r"\1_#"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)"), "#time"),
    (re.compile(r"(\\*\"(?:seconds|took_ms|elapsed|milliseconds)\\*\": ?)[\d.]+"), r"\1#"),
    (re.compile(r"\bapprov\w+ [0-9a-f]{8}\b"), "approval #"),
    (re.compile(r"\b(?:[0-9a-f]{8}|[0-9a-f]{32})\b"), "#id"),
)
_CHANGING = frozenset(
    {
        "seconds",
        "took_ms",
        "requestState",
        "ttl",
        "ttlMs",
        "milliseconds",
        "createdAt",
        "io.modelcontextprotocol/subscriptionId",
    }
)


class EndedError(Exception):
    """A request that was answered with an error, or with nothing; `outcome` says what."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(f"{outcome}: {text}")
        self.outcome, self.text = outcome, text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what became of it; `answer` is without ids and times, None where it depends on time."""

    turn: str
    kind: str
    era: str
    outcome: str
    text: str
    begun: float
    seconds: float
    replica: str
    answer: str | None


@dataclass
class Visitor:
    """A client with a key and a mark that all its arguments carry, and no other client's."""

    name: str
    mark: str
    era: Era
    url: str
    http: httpx2.AsyncClient
    side: httpx2.AsyncClient
    exchanges: list[Exchange] = field(default_factory=list)
    reopened: int = 0
    turn: str = ""
    kind: str = ""
    _client: Client | None = None

    async def open(self) -> Client:
        """Return the open client, with a new session where there is none."""
        if self._client is None:
            headers = {"authorization": f"Bearer {client_key(self.name)}"}
            client = Client(self.http, self.url, self.era, headers, CAPABILITIES)
            await client.open()
            self._client = client
        return self._client

    async def close(self) -> None:
        """End the session, if there is one."""
        if self._client is not None:
            await self._client.close()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        answer: Answer | None = None,
        *,
        awaited: Collection[str] = (),
        compared: bool = True,
    ) -> dict[str, Any]:
        """Return the result of a request; what it ends in is kept.

        Args:
            method: the method.
            params: its parameters.
            answer: answers a question that the server asks meanwhile.
            awaited: statuses of a task; the notification with one of them ends the request, and is its result.
            compared: False for an answer that depends on when the request was made.

        Raises:
            EndedError: there is no result.
            AnswerError: the answer is another client's.
        """
        begun, replica, message = time.monotonic(), "-", dict[str, Any]()
        result: dict[str, Any] = {}
        try:
            message, replica = await self._sent_again(method, params, answer, awaited)
            outcome, text, result = judge(message)
        except (httpx2.HTTPError, AnswerError) as error:
            outcome, text = CONNECTION, f"{type(error).__name__}: {error}"[:300]
        except EndedError as error:
            outcome, text = error.outcome, error.text
        seconds = time.monotonic() - begun
        seen = comparable(message.get("result") or message.get("error")) if compared else None
        done = Exchange(self.turn, self.kind, self.era.value, outcome, text, begun, seconds, replica, seen)
        self.exchanges.append(done)
        if others := set(MARK.findall(json.dumps(message))) - {self.mark}:
            raise AnswerError(f"{self.mark} got an answer with {sorted(others)}")
        if outcome != RESULT:
            raise EndedError(outcome, text)
        return result

    async def _sent_again(
        self, method: str, params: Mapping[str, Any], answer: Answer | None, awaited: Collection[str]
    ) -> tuple[dict[str, Any], str]:
        """Send a request, once more in a new session if there is no session any more."""
        try:
            return await self._sent(method, params, answer, awaited)
        except EndedError as error:
            if error.outcome != SESSION_LOST:
                raise
        self._client = None
        self.reopened += 1
        return await self._sent(method, params, answer, awaited)

    async def _sent(
        self, method: str, params: Mapping[str, Any], answer: Answer | None, awaited: Collection[str]
    ) -> tuple[dict[str, Any], str]:
        client = await self.open()
        return await self._answer_to(client, *client.prepared(method, params), answer, awaited)

    async def _answer_to(
        self,
        client: Client,
        message: dict[str, Any],
        headers: dict[str, str],
        answer: Answer | None = None,
        awaited: Collection[str] = (),
    ) -> tuple[dict[str, Any], str]:
        """Return the message that answers a request, and the replica that it came from."""
        async with client.http.stream("POST", self.url, json=message, headers=headers) as response:
            replica = response.headers.get(SERVED_BY, "-")
            if response.status_code == httpx2.codes.NOT_FOUND and "mcp-session-id" in headers:
                raise EndedError(SESSION_LOST, replica)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                body = await response.aread()
                try:
                    return dict(json.loads(body)), replica
                except ValueError:
                    raise EndedError(CONNECTION, f"HTTP {response.status_code}: {body[:100]!r}") from None
            async for line in response.aiter_lines():
                event = json.loads(line[6:]) if line.startswith("data: {") else {}
                if "id" in event and "method" not in event:
                    return event, replica
                if event.get("params", {}).get("status") in awaited:
                    return {"result": event["params"]}, replica
                if event.get("method") == ACKNOWLEDGED and not event["params"]["notifications"].get("taskIds"):
                    raise EndedError(NOT_FOLLOWED, "the task is not among those that the stream tells of")
                if "id" in event and answer is not None:
                    given = {"jsonrpc": "2.0", "id": event["id"], "result": answer(event)}
                    await self.side.post(self.url, json=given, headers=headers)
        raise EndedError(CONNECTION, "the stream ended without an answer")

    async def given_up(self, method: str, params: Mapping[str, Any], *, after: float) -> None:
        """Send a request and give it up: by a notification in the handshake era, by closing its stream in the other.

        Raises:
            EndedError: it was answered with an error before.
            AnswerError: it was answered before.
        """
        begun, message = time.monotonic(), dict[str, Any]()
        client = await self.open()
        sent, headers = client.prepared(method, params)

        async def cancel() -> None:
            await anyio.sleep(after)
            given = {"requestId": sent["id"], "reason": "given up"}
            notification, its_headers = client.prepared("notifications/cancelled", given)
            del notification["id"]
            await self.side.post(self.url, json=notification, headers=its_headers)

        async with anyio.create_task_group() as group:
            if self.era is Era.HANDSHAKE:
                group.start_soon(cancel)
            with suppress(httpx2.HTTPError, EndedError), anyio.move_on_after(after + CANCELLED_SECONDS) as patience:
                if self.era is Era.STATELESS:
                    patience.deadline = anyio.current_time() + after
                message, _ = await self._answer_to(client, sent, headers)
            group.cancel_scope.cancel()
        outcome, text, result = judge(message) if message else (RESULT, "", {})
        seconds = time.monotonic() - begun
        self.exchanges.append(Exchange(self.turn, self.kind, self.era.value, outcome, text, begun, seconds, "-", None))
        if result:
            raise AnswerError(f"a call that was given up was answered: {json.dumps(result)[:300]}")


def judge(message: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the outcome of a message, its words where it is an error, and its result."""
    if "result" not in message:
        error = message.get("error")
        if not isinstance(error, dict):
            return UNTYPED, json.dumps(message)[:500], {}
        data, number = error.get("data"), error.get("code")
        if isinstance(data, dict) and (code := _coded(data)) != UNTYPED:
            return code, str(error.get("message")), {}
        if not isinstance(number, int) or number == INTERNAL_ERROR:
            return UNTYPED, json.dumps(message)[:500], {}
        return str(number), str(error.get("message")), {}
    result: dict[str, Any] = message["result"]
    error = (result.get("structuredContent") or {}).get("error")
    if isinstance(error, dict):
        return _coded(error), str(error.get("message")), result
    if result.get("isError"):
        return UNTYPED, json.dumps(result)[:500], result
    return RESULT, "", result


def _coded(error: Mapping[str, Any]) -> str:
    if error.get("code") == ErrorCode.INTERNAL.value and error.get("retryable"):
        return RETRYABLE
    return str(error["code"]) if error.get("code") in TYPED else UNTYPED


def comparable(answer: Any) -> str:
    """Return an answer as text, without what differs from run to run."""
    text = json.dumps(_steady(answer), sort_keys=True)
    for pattern, replacement in _HANDLES:
        text = pattern.sub(replacement, text)
    return text


def _steady(value: Any) -> Any:
    match value:
        case dict():
            kept = {key: _steady(each) for key, each in value.items() if key not in _CHANGING}
            if "structuredContent" in kept:
                kept.pop("content", None)  # the same as text
            return kept
        case list():
            return [_steady(each) for each in value]
        case _:
            return value


@asynccontextmanager
async def visiting(name: str, era: Era, url: str) -> AsyncIterator[Visitor]:
    """Run a client with connections of its own; its mark has the number of its name."""
    async with (
        httpx2.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False) as http,
        httpx2.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False) as side,
    ):
        visitor = Visitor(name, name.replace("client", "mark"), era, url, http, side)
        try:
            yield visitor
        finally:
            with suppress(httpx2.HTTPError):  # the replica of its session may have ended
                await visitor.close()
