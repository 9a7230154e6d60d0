"""A gateway as a process on one of three ways, and a client without any SDK in front of it."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from tests.support.process import SERVE as SHARED
from tests.support.process import end_gateway, environment, running_gateway, serve_alone, write_settings
from tests.support.raw import INTRODUCTION, META, MODERN, HandshakeSession, decoded, post_modern

Way = Literal["alone", "shared", "http"]
Era = Literal["2025-11-25", "2026-07-28"]
WAYS: tuple[Way, ...] = ("alone", "shared", "http")
ERAS: tuple[Era, ...] = ("2025-11-25", MODERN)

ANSWER_SECONDS = 60
"""The longest wait for one answer."""
LIST_SECONDS = 60
"""Time until every server has listed its tools; slow where many tests run."""


class _Link(Protocol):
    """Sends one request and returns its response."""

    notifications: list[dict[str, Any]]

    def send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]: ...


class FieldClient:
    """A client in front of a gateway."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    @property
    def notifications(self) -> list[dict[str, Any]]:
        """Notifications that came over stdio so far; empty over HTTP."""
        return self._link.notifications

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request; return the whole response, with `result` or `error`."""
        return self._link.send(method, params or {})

    def result(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a request that must succeed."""
        response = self.send(method, params)
        assert "result" in response, response
        result: dict[str, Any] = response["result"]
        return result

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the result, also one with `isError`."""
        return self.result("tools/call", {"name": name, "arguments": arguments})

    def tools(self, *expected: str) -> dict[str, dict[str, Any]]:
        """List tools by name; wait until those expected are there."""
        return self._listed("tools", expected)

    def prompts(self, *expected: str) -> dict[str, dict[str, Any]]:
        """List prompts by name; wait until those expected are there."""
        return self._listed("prompts", expected)

    def _listed(self, what: str, expected: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        end = time.monotonic() + LIST_SECONDS
        while True:
            listed = {item["name"]: item for item in self.result(f"{what}/list")[what]}
            if listed.keys() >= set(expected) or time.monotonic() > end:
                assert listed.keys() >= set(expected), sorted(set(expected) - listed.keys())
                return listed
            threading.Event().wait(0.1)


@contextmanager
def gateway_client(way: Way, era: Era, home: Path, settings: Mapping[str, Any]) -> Iterator[FieldClient]:
    """Start a gateway that lists everything, with a client; both end with this context."""
    with reached(way, home, {"gateway": {"tools_exposure": "full_proxy"}, **settings}) as end:
        if isinstance(end, str):
            with _http(end, era) as client:
                yield client
        else:
            with _Requests(end, era) as link:
                yield FieldClient(link)


@contextmanager
def reached(way: Way, home: Path, settings: Mapping[str, Any]) -> Iterator[str | subprocess.Popen[bytes]]:
    """Start a gateway; yield its URL or the process that a client starts. Both end with this context."""
    if way == "http":
        with running_gateway(home, settings) as gateway:
            yield gateway.url
        return
    write_settings(home, settings)
    command = serve_alone() if way == "alone" else [*SHARED]
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command, env=environment(home), cwd=home, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        ) as process:
            yield process
    finally:
        if way == "shared":
            end_gateway(home)


@contextmanager
def _http(url: str, era: Era) -> Iterator[FieldClient]:
    if era == MODERN:
        yield FieldClient(_Stateless(url))
        return
    with HandshakeSession(url, era) as session:
        yield FieldClient(_Session(session))


class _Stateless:
    """Stateless requests over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.notifications: list[dict[str, Any]] = []

    def send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return decoded(post_modern(self._url, method, params, timeout=ANSWER_SECONDS))


class _Session:
    """Requests of a session over HTTP."""

    def __init__(self, session: HandshakeSession) -> None:
        self._session = session
        self.notifications: list[dict[str, Any]] = []

    def send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return decoded(self._session.send(method, params))


class Lines:
    """Messages over the standard streams of a process, which ends with this context.

    `take` gets each message that comes, in a thread of its own, and None at the end.
    """

    def __init__(self, process: subprocess.Popen[bytes], take: Callable[[dict[str, Any] | None], None]) -> None:
        assert process.stdin is not None
        self._process, self._input, self._take = process, process.stdin, take
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self, content: bytes) -> None:
        """Write one line."""
        self._input.write(content + b"\n")
        self._input.flush()

    def close(self) -> None:
        """End the process, as clients do."""
        self._input.close()
        try:
            self._process.wait(ANSWER_SECONDS)
        finally:
            self._process.kill()
            self._reader.join(ANSWER_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))
        self._take(None)


def handshake(era: Era) -> tuple[bytes, bytes]:
    """Return the messages that open a session."""
    opening = {"id": 0, "method": "initialize", "params": {**INTRODUCTION, "protocolVersion": era}}
    return (
        json.dumps({"jsonrpc": "2.0", **opening}).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    )


class _Requests:
    """Requests over the standard streams of a process."""

    def __init__(self, process: subprocess.Popen[bytes], era: Era) -> None:
        self._era = era
        self._ids = itertools.count(1)
        self._responses: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.notifications: list[dict[str, Any]] = []
        self._lines = Lines(process, self._take)

    def __enter__(self) -> _Requests:
        if self._era != MODERN:
            opening, opened = handshake(self._era)
            self._lines.write(opening)
            self._response_to(0, "initialize")
            self._lines.write(opened)
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        if self._era == MODERN:
            params = {**params, "_meta": {**META, **params.get("_meta", {})}}
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._lines.write(json.dumps(request).encode())
        return self._response_to(number, method)

    def _response_to(self, number: int, method: str) -> dict[str, Any]:
        while (response := self._responses.get(timeout=ANSWER_SECONDS)) is not None:
            if response.get("id") == number:
                return response
        raise AssertionError(f"the gateway ended before it answered {method}")

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None or "method" not in message:
            self._responses.put(message)
        elif "id" not in message:
            self.notifications.append(message)
