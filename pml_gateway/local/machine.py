"""The gateway process of a machine: serves every client that attaches, and ends when told to or when idle."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway import __version__
from pml_gateway.config.load import user_settings_or_defaults
from pml_gateway.errors import GatewayError, innermost
from pml_gateway.gateway.shared import SharedResources, open_shared
from pml_gateway.home import close_to_others, warn_unwritable_places
from pml_gateway.installation import is_newer
from pml_gateway.local.attachment import Attachment
from pml_gateway.local.endpoint import Endpoint, UnsafeEndpointError, check_peer, remove
from pml_gateway.local.listening import HttpListener
from pml_gateway.local.profiles import Profiles
from pml_gateway.local.session import (
    BROKEN,
    MAX_HELLO,
    LineStream,
    Member,
    open_lines,
    restored,
    serve_operation,
    serve_session,
)
from pml_gateway.local.status import client_rows, memory_of, server_rows
from pml_gateway.local.up_request import UpRequest
from pml_gateway.log import Seldom, get_logger
from pml_gateway.paths import Paths
from pml_gateway.processes.framing import OversizedLine
from pml_gateway.serve.clients import end_local_client
from pml_gateway.serve.limits.descriptors import raise_limit
from pml_gateway.serve.runtime import TURN_SECONDS, refresh_on_hangup
from pml_gateway.serve.signals import first_signal
from pml_gateway.telemetry import logs
from pml_gateway.text import span
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients

logger = get_logger(__name__)

HELLO_TIMEOUT = 10.0
"""Seconds that a new connection gets to send its first line."""

DRAIN_SECONDS = 60.0
"""Maximum seconds that requests in flight get when the gateway ends on purpose."""

STARTS = "the gateway of this machine starts"
"""Log message at which the log of one gateway begins, after those of earlier gateways in the same file."""

EXHAUSTED_SECONDS = 0.1
"""Seconds between retries of `accept` while the system has no more file descriptors."""

LOOK_SECONDS = 5.0
"""Seconds between checks for idleness."""

UNUSED_SECONDS = 10.0
"""Seconds that a gateway started by a client stays if it has served none, for example with a wrong configuration, so
that an early retry need not start another gateway."""


@dataclass(slots=True)
class Life:
    """The lifetime of the process: until told to end or, if a client started it, until it has been unused for a while.

    The file `up_request` tells the next gateway how to run if this one is killed.
    """

    started_by: str
    up_request: str
    http: Mapping[str, Any] | None = None
    not_listening: str | None = None
    started: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    has_served: bool = False
    reason: str = ""
    ending: anyio.Event = field(default_factory=anyio.Event)

    def end(self, reason: str) -> None:
        """End for a reason: `down`, `restart`, `replaced` or `idle`."""
        self.reason = self.reason or reason
        # A command that restarts the gateway passes more to the next one than the file holds.
        if self.reason != "replaced":
            remove(self.up_request)
        self.ending.set()

    def write_request(self) -> None:
        """Write the request of `pml up` to its file for the next gateway, unless this one is ending."""
        if self.ending.is_set():
            return
        if self.started_by != "up":
            remove(self.up_request)
            return
        try:
            UpRequest(self.http).write(self.up_request)
        except OSError as error:
            logger.warning("%s: %s; after a kill, a client starts a gateway as if for itself", self.up_request, error)


class Machine:
    """The handler of all connections to this process: clients and commands."""

    def __init__(
        self, profiles: Profiles, shared: SharedResources, listening: HttpListener, paths: Paths, life: Life
    ) -> None:
        self._profiles = profiles
        self._shared = shared
        self._listening = listening
        self._paths = paths
        self._life = life

    async def serve(self, connection: socket.socket) -> None:
        """Serve a connection: answer a command, or serve a client until it leaves."""
        async with open_lines(connection) as lines:
            each = aiter(lines)
            first: bytes | OversizedLine = b""
            with anyio.move_on_after(HELLO_TIMEOUT), suppress(StopAsyncIteration):
                first = await anext(each)
            if not first:
                return
            with suppress(*BROKEN):
                if isinstance(first, OversizedLine):
                    # The line was read to its end, as a bridge that still writes would not read the reason.
                    message = f"a first line of {first.size} bytes: at most {MAX_HELLO} are read"
                    lines.tell({"refused": {"message": message, "hint": "set fewer variables", "exit": 1}})
                elif b'"command"' in first[:40]:
                    lines.write(json.dumps(await self._execute(first)).encode())
                else:
                    lines.allow_messages()
                    await self._attach(first, lines, each)

    async def _attach(self, hello: bytes, lines: LineStream, rest: AsyncIterator[bytes | OversizedLine]) -> None:
        try:
            attachment = await anyio.to_thread.run_sync(Attachment.read, hello)
        except ValueError as error:
            lines.tell({"refused": {"message": str(error), "hint": "", "exit": 1}})
            return
        if self._life.ending.is_set():
            lines.tell({"leaving": self._life.reason})
            return
        is_older = is_newer(attachment.version, __version__)
        if is_older and not attachment.has_replaced:
            logger.info("a client of version %s came: this gateway, %s, makes room", attachment.version, __version__)
            lines.tell({"leaving": "replaced"})
            self._life.end("replaced")
            return
        asked = attachment.operation
        try:
            member = Member(attachment, lines, memory=restored(attachment.state))
            member.name = f"pml {asked.name}" if asked is not None else ""
            async with self._profiles.entered(member) as entered:
                if entered is None:
                    lines.tell({"alone": True})
                    return
                self._life.has_served = True
                # The answer of an operation includes the warnings.
                runtime, notes = entered.runtime, [] if asked else [*entered.notes, *attachment.without_effect]
                if is_older:
                    # The client has replaced a gateway, but got an older version again: pml was downgraded since.
                    older = f"the gateway is of an older version, {__version__}, than its client, {attachment.version}"
                    logger.warning("%s", older)
                    notes.append(f"{older}: restart the client, or upgrade pml")
                lines.tell({"attached": {"pid": os.getpid(), "version": __version__, "notes": notes}})
                if asked is not None:
                    await serve_operation(runtime, member, asked, rest, entered.notes)
                    return
                try:
                    await serve_session(runtime, member, rest)
                finally:
                    # A handshake session ends by itself; a client without one has left only now. A bridge that was
                    # cut off may have attached again by then.
                    others = [each.attachment.client for each in self._profiles.members if each is not member]
                    if attachment.client not in others:
                        end_local_client(runtime.gateway, attachment.client.id)
        except Exception as raised:  # noqa: BLE001
            lines.tell({"refused": _refusal(innermost(raised))})
        finally:
            self._life.used = time.monotonic()

    async def _execute(self, line: bytes) -> JsonObject:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"error": "one line with a JSON object is expected"}
        match request.get("command"):
            case "status":
                return self.status()
            case "expect":
                # The same state as after a client has left.
                self._life.has_served, self._life.used = True, time.monotonic()
                return {"expected": True}
            case "keep":
                self._keep()
                return {"kept": True}
            case "http":
                return await self._listen(request)
            case "down" | "restart" as reason:
                seconds = request.get("seconds", DRAIN_SECONDS)
                if not isinstance(seconds, int | float):
                    return {"error": f"seconds: {seconds!r} is no number"}
                # The command that restarts the gateway passes this to the next one.
                left = {"http": self._life.http} if reason == "restart" else {}
                self._life.end(reason)
                return {"ended": True, "unfinished": await self._send_away(reason, seconds), **left}
            case command:
                return {"error": f"unknown command {command!r}; known are status, expect, keep, http, down and restart"}

    async def listen(self, wanted: Mapping[str, Any]) -> str:
        """Serve over HTTP as well, at the wanted address, and return the URL.

        Raises:
            ValueError: the owner is malformed.
            GatewayError: the configuration cannot be served there.
        """
        owner = Attachment.read(json.dumps(wanted.get("owner")).encode())
        url = await self._listening.begin(owner, wanted.get("host"), wanted.get("port"))
        # A port that the system chose is kept: clients have the URL.
        self._life.http = {"owner": wanted["owner"], "host": wanted.get("host"), "port": urlsplit(url).port}
        return url

    async def _listen(self, request: JsonObject) -> JsonObject:
        try:
            url = await self.listen(request)
        except ValueError as error:
            return {"error": str(error)}
        except GatewayError as error:
            return {"error": str(error)}
        self._keep()
        return {"url": url}

    def _keep(self) -> None:
        """Stay until told to end."""
        if self._life.started_by == "client":
            self._life.started_by = "up"
        self._life.write_request()

    def status(self) -> JsonObject:
        """Return the state of the process, its clients and its servers; times in seconds, memory in bytes."""
        return {
            "pid": os.getpid(),
            "version": __version__,
            "age_seconds": round(time.monotonic() - self._life.started, 3),
            "started_by": self._life.started_by,
            "url": self._listening.url,
            "http_clients": self._listening.clients,
            "not_listening": self._life.not_listening if self._listening.url is None else None,
            "memory_bytes": memory_of(os.getpid()),
            "clients": client_rows(self._profiles.all),
            "servers": server_rows(self._shared.upstreams, self._profiles.all),
        }

    async def end(self) -> None:
        """Send every client away, and wait until requests in flight are answered."""
        await self._send_away(self._life.reason, DRAIN_SECONDS)
        if self._listening.url is not None:
            with anyio.move_on_after(DRAIN_SECONDS):
                await self._listening.closed.wait()

    async def _send_away(self, reason: str, seconds: float) -> int:
        """Send every client away; return the number of clients with unanswered requests at the end."""
        outcomes: list[bool] = []

        async def send(member: Member) -> None:
            outcomes.append(await member.send_away(reason, seconds))

        for profile in self._profiles.all:
            if profile.runtime is not None:
                profile.runtime.presence.is_ending = True
        async with anyio.create_task_group() as tasks:
            for member in self._profiles.members:
                tasks.start_soon(send, member)
        return outcomes.count(False)

    async def end_when_idle(self) -> None:
        """End a gateway that a client started once it has been unused for as long as the settings say."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            self._profiles.close_unused()
            if self._profiles.members or self._life.started_by != "client":
                self._life.used = time.monotonic()
                continue
            seconds = await self._idle_seconds()
            if time.monotonic() - self._life.used >= seconds:
                logger.info("no client for %s: ending", span(seconds))
                self._life.end("idle")

    async def _idle_seconds(self) -> float:
        if not self._life.has_served:
            return UNUSED_SECONDS
        # The gateway of the last client is kept open, so these are its settings, with every edit since.
        settings = self._profiles.settings
        if settings is None:
            settings = await anyio.to_thread.run_sync(user_settings_or_defaults, self._paths)
        return settings.local.idle_minutes * 60


def _refusal(error: BaseException) -> JsonObject:
    if isinstance(error, GatewayError):
        return {"message": error.message, "hint": error.hint or "", "exit": error.exit_code}
    logger.error("a client could not be served", exc_info=error)
    return {"message": f"the gateway could not serve this client ({type(error).__name__})", "hint": "", "exit": 1}


async def run(
    endpoint: Endpoint,
    listener: socket.socket,
    life_lock: int,
    paths: Paths,
    started_by: str,
    http: Mapping[str, Any] | None,
    is_replacement: bool,
) -> None:
    """Run as the gateway of a home and configuration until told to end or idle.

    Args:
        endpoint: the endpoint; this process holds its life lock and listens on its socket.
        listener: the listening socket.
        life_lock: descriptor that holds the life lock.
        paths: locations of configuration and state.
        started_by: `client` if the gateway is to end once it is idle.
        http: the command `http`, if the gateway is to listen on HTTP as well.
        is_replacement: True if the gateway takes the place of a killed one, as `pml up` asked for.

    Raises:
        GatewayError: it cannot listen on HTTP.
    """
    sys.setswitchinterval(TURN_SECONDS)
    # The limit inherited from the client or the system may be too low for a gateway.
    raise_limit()
    logs.rotate(Path(endpoint.log))
    logs.configure((await anyio.to_thread.run_sync(user_settings_or_defaults, paths)).log)
    logger.info("%s: process %d, version %s", STARTS, os.getpid(), __version__)
    if is_replacement:
        logger.warning("in the place of one that has gone, as `pml up` asked for it")
    close_to_others(paths.home)
    warn_unwritable_places(paths)
    life = Life(started_by, endpoint.up_request, http)
    try:
        async with (
            first_signal() as signalled,
            open_shared(paths, local=LocalClients()) as shared,
            anyio.create_task_group() as tasks,
        ):
            profiles = Profiles(tasks, shared, paths)
            machine = Machine(profiles, shared, HttpListener(tasks, shared, life.ending), paths, life)
            gc.freeze()
            tasks.start_soon(accept, listener, machine, tasks)
            tasks.start_soon(refresh_on_hangup, lambda: profiles.gateways)
            tasks.start_soon(machine.end_when_idle)

            async def end_on_signal() -> None:
                await signalled.wait()
                life.end("down")

            tasks.start_soon(end_on_signal)
            if http is not None:
                life.not_listening = await _listen(machine, http, is_replacement=is_replacement)
            life.write_request()
            await life.ending.wait()
            endpoint.withdraw()
            # Clients of the next gateway need not wait for requests in flight here.
            endpoint.leave(life_lock)
            await machine.end()
            tasks.cancel_scope.cancel()
    finally:
        listener.close()
        endpoint.withdraw()
        if not life.ending.is_set():
            endpoint.leave(life_lock)
        # Held to the very end: commands wait for its release to know that nothing of this gateway is left.
        os.close(life_lock)


async def _listen(machine: Machine, http: Mapping[str, Any], *, is_replacement: bool) -> str | None:
    """Serve over HTTP as well; if this is a replacement and it fails, return the reason instead of raising."""
    try:
        await machine.listen(http)
    except (GatewayError, ValueError) as error:
        if not is_replacement:
            raise
        # The clients of bridges are still served.
        logger.error("nothing is served over HTTP any more: %s", error)
        return str(error)
    return None


async def accept(listener: socket.socket, machine: Machine, tasks: anyio.abc.TaskGroup) -> None:
    """Accept and serve connections until cancelled; a failure of one connection does not affect the others."""
    listener.setblocking(False)
    exhausted = Seldom(logger)
    while True:
        await anyio.wait_readable(listener)
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            continue
        except OSError as error:
            # Waiting connections are accepted once others have left.
            exhausted.warning("no further client can be served now: %s", error)
            await anyio.sleep(EXHAUSTED_SECONDS)
            continue
        tasks.start_soon(_serve, connection, machine)


async def _serve(connection: socket.socket, machine: Machine) -> None:
    try:
        check_peer(connection)
    except OSError as error:
        if isinstance(error, UnsafeEndpointError):
            logger.warning("refused: %s", error)
        connection.close()
        return
    try:
        await machine.serve(connection)
    # A failure of one connection must not end the others.
    except Exception:
        logger.exception("a connection could not be served")
