"""A scripted client that starts its own server over stdio, as desktop clients do: JSON-RPC on pipes, nothing more."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.abc

from benchmarks.client import Era

ANSWER_SECONDS = 120.0
LEAVE_SECONDS = 15.0
MAX_ROUNDS = 10
META = "io.modelcontextprotocol/"
ANNOUNCED: Mapping[str, Any] = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}
"""What real clients announce."""

Message = dict[str, Any]


class GoneError(Exception):
    """The process that was asked has ended."""


class Person(Protocol):
    """Who sits behind a client: answers what it is asked, and sees what it is told."""

    def answer(self, method: str, params: Message) -> Message:
        """The result of a question."""

    def told(self, method: str, params: Message) -> None:
        """A notification arrived."""


class Silent:
    """Nobody in particular."""

    def answer(self, method: str, params: Message) -> Message:
        return {"roots": []} if method == "roots/list" else {"action": "decline"}

    def told(self, method: str, params: Message) -> None:
        return


@dataclass(slots=True)
class _Pending:
    done: anyio.Event = field(default_factory=anyio.Event)
    message: Message | None = None


@dataclass(slots=True)
class MachineClient:
    """One client and the process it started; any number of requests may be in flight."""

    name: str
    version: str
    announced: Mapping[str, Any]
    process: anyio.abc.Process
    person: Person
    started: float
    # Answers to no request, or second ones.
    unasked: int = 0
    _sent: int = 0
    _given_up: set[int | str] = field(default_factory=set)
    _pending: dict[int | str, _Pending] = field(default_factory=dict)
    _writing: anyio.Lock = field(default_factory=anyio.Lock)
    _ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self.started

    @property
    def pid(self) -> int:
        """Of the process that the client started."""
        return self.process.pid

    @property
    def is_gone(self) -> bool:
        """Whether that process has closed its side."""
        return self._ended.is_set()

    @property
    def is_stateless(self) -> bool:
        """Whether it speaks without a handshake, and is asked in results."""
        return self.version >= Era.STATELESS

    async def open(self) -> None:
        """Shake hands, where the era wants it."""
        if not self.is_stateless:
            about = {"protocolVersion": self.version, "capabilities": self.announced, "clientInfo": self._info}
            await self.result("initialize", about)
            await self.notify("notifications/initialized")

    async def result(self, method: str, params: Message | None = None) -> Message:
        """The result of a request that must have one."""
        message = await self.request(method, params)
        if "result" not in message:
            raise AssertionError(f"{self.name}: {method}: {json.dumps(message)[:500]}")
        result: Message = message["result"]
        return result

    async def request(
        self, method: str, params: Message | None = None, *, on_sent: Callable[[int], object] | None = None
    ) -> Message:
        """The answer, a result or an error. Questions in results are answered, which makes more requests.

        Raises:
            GoneError: the process ended instead.
        """
        given = dict(params or {})
        for _ in range(MAX_ROUNDS):
            message = await self._exchange(method, given, on_sent)
            result = message.get("result") or {}
            if result.get("resultType") != "input_required":
                return message
            asked = result.get("inputRequests") or {}
            answers = {key: self.person.answer(one["method"], one.get("params") or {}) for key, one in asked.items()}
            given = {**given, "inputResponses": answers, "requestState": result.get("requestState")}
        raise AssertionError(f"{self.name}: asked more than {MAX_ROUNDS} times")

    async def notify(self, method: str, params: Message | None = None) -> None:
        """Send a notification."""
        await self._write({"method": method, "params": params or {}})

    async def leave(self) -> int:
        """Close stdin, as a client does that ends, and wait until the process has."""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            assert self.process.stdin is not None
            await self.process.stdin.aclose()
        with anyio.move_on_after(LEAVE_SECONDS):
            return await self.process.wait()
        self.kill()
        await self.process.wait()
        raise AssertionError(f"{self.name}: the process did not end within {LEAVE_SECONDS:g} s of its client's leaving")

    def kill(self) -> None:
        """End the process at once, and nothing else."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    async def read(self) -> None:
        """Take what arrives, until the process ends."""
        assert self.process.stdout is not None
        pieces: list[bytes] = []
        try:
            async for chunk in self.process.stdout:
                *whole, rest = chunk.split(b"\n")
                for line in whole:
                    pieces.append(line)
                    await self._take(b"".join(pieces))
                    pieces.clear()
                if rest:
                    pieces.append(rest)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        finally:
            self._ended.set()
            for pending in self._pending.values():
                pending.done.set()

    @property
    def _info(self) -> Message:
        return {"name": self.name, "version": "1"}

    async def _exchange(self, method: str, params: Message, on_sent: Callable[[int], object] | None) -> Message:
        self._sent += 1
        request_id = self._sent
        pending = self._pending[request_id] = _Pending()
        try:
            if self.is_gone:
                raise GoneError(self.name)
            await self._write({"id": request_id, "method": method, "params": self._envelope(params)})
            if on_sent is not None:
                on_sent(request_id)
            with anyio.fail_after(ANSWER_SECONDS):
                await pending.done.wait()
        finally:
            del self._pending[request_id]
            if pending.message is None:
                self._given_up.add(request_id)
        if pending.message is None:
            raise GoneError(self.name)
        return pending.message

    def _envelope(self, params: Message) -> Message:
        if not self.is_stateless:
            return params
        about = {"protocolVersion": self.version, "clientInfo": self._info, "clientCapabilities": self.announced}
        return {**params, "_meta": {f"{META}{key}": value for key, value in about.items()} | params.get("_meta", {})}

    async def _take(self, line: bytes) -> None:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            pending = self._pending.get(request_id)
            if pending is not None and pending.message is None:
                pending.message = message
                pending.done.set()
            elif request_id not in self._given_up:
                self.unasked += 1
        elif request_id is None:
            self.person.told(method, message.get("params") or {})
        elif method == "ping":
            await self._write({"id": request_id, "result": {}})
        else:
            # Whoever asked may have been killed since.
            with suppress(GoneError):
                await self._write({"id": request_id, "result": self.person.answer(method, message.get("params") or {})})

    async def _write(self, message: Message) -> None:
        assert self.process.stdin is not None
        async with self._writing:
            try:
                await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise GoneError(self.name) from error


async def start_client(
    tasks: anyio.abc.TaskGroup,
    name: str,
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    version: str = Era.HANDSHAKE,
    announced: Mapping[str, Any] = ANNOUNCED,
    person: Person | None = None,
    log: Path | None = None,
) -> MachineClient:
    """Start the process and read from it in `tasks`; nothing is sent yet."""
    with (log or Path(os.devnull)).open("ab") as kept:
        started = time.perf_counter()
        process = await anyio.open_process(
            command, cwd=folder, env=dict(environment), stderr=kept, start_new_session=True
        )
    client = MachineClient(name, str(version), announced, process, person or Silent(), started)
    tasks.start_soon(client.read)
    return client
