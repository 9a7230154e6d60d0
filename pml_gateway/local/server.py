"""The gateway process of a machine: serves every client that attaches, from its start to its end."""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway import __version__
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.settings import LogSettings, Settings
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError, innermost
from pml_gateway.gateway.shared import open_shared
from pml_gateway.home import close_to_others, tell_lacks
from pml_gateway.local.attachment import Attachment
from pml_gateway.local.endpoint import Endpoint, UnsafeEndpointError
from pml_gateway.local.listening import Listening
from pml_gateway.local.profiles import Profile, Profiles
from pml_gateway.local.session import BROKEN, LineStream, Member, open_lines, restored, serve_session
from pml_gateway.log import get_logger
from pml_gateway.paths import Paths
from pml_gateway.processes.framing import Oversized
from pml_gateway.serve.signals import first_signal
from pml_gateway.telemetry import logs
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.workplace import Workplace

logger = get_logger(__name__)

HELLO_SECONDS = 10.0
"""What whoever connects is given to say what it wants."""

DRAIN_SECONDS = 60.0
"""What requests in flight are given at the most when the gateway ends on purpose."""

LOOK_SECONDS = 5.0
"""How often it is looked whether a gateway that started by itself is used."""

TURN_SECONDS = 0.001
"""How long a thread keeps others from running Python, as in `pml serve`."""


@dataclass(slots=True)
class Life:
    """How long the process lives: until it is told to end, or nobody has used it for a while, if it began by itself."""

    started_by: str
    started: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    reason: str = ""
    ending: anyio.Event = field(default_factory=anyio.Event)

    def end(self, reason: str) -> None:
        """End for a reason: `down`, `restart`, `replaced` or `idle`."""
        self.reason = self.reason or reason
        self.ending.set()


class Machine:
    """Everything that is attached to this process."""

    def __init__(self, profiles: Profiles, listening: Listening, paths: Paths, life: Life) -> None:
        self._profiles = profiles
        self._listening = listening
        self._paths = paths
        self._life = life

    async def serve(self, connection: socket.socket) -> None:
        """Serve whoever connected: a command, or a client for as long as it stays."""
        async with open_lines(connection) as lines:
            each = aiter(lines)
            first: bytes | Oversized = b""
            with anyio.move_on_after(HELLO_SECONDS), suppress(StopAsyncIteration):
                first = await anext(each)
            if isinstance(first, Oversized) or not first:
                return
            with suppress(*BROKEN):
                if b'"command"' in first[:40]:
                    await lines.write(json.dumps(await self._execute(first)).encode())
                else:
                    await self._attach(first, lines, each)

    async def _attach(self, hello: bytes, lines: LineStream, rest: AsyncIterator[bytes | Oversized]) -> None:
        try:
            attachment = await anyio.to_thread.run_sync(Attachment.read, hello)
        except ValueError as error:
            await lines.tell({"refused": {"message": str(error), "hint": "", "exit": 1}})
            return
        if self._life.ending.is_set():
            await lines.tell({"leaving": self._life.reason})
            return
        if is_newer(attachment.version, __version__):
            logger.info("a client of version %s came: this gateway, %s, makes room", attachment.version, __version__)
            await lines.tell({"leaving": "replaced"})
            self._life.end("replaced")
            return
        try:
            async with self._profiles.entered(attachment) as entered:
                if entered is None:
                    await lines.tell({"alone": True})
                    return
                profile, runtime = entered
                member = Member(attachment, lines, memory=restored(attachment.state))
                await lines.tell({"attached": {"pid": os.getpid(), "version": __version__, "notes": profile.notes}})
                profile.members.append(member)
                try:
                    await serve_session(runtime, member, rest)
                finally:
                    profile.members.remove(member)
                    self._life.used = time.monotonic()
        except Exception as raised:  # noqa: BLE001
            await lines.tell({"refused": _refusal(innermost(raised))})

    async def _execute(self, line: bytes) -> JsonObject:
        try:
            request = json.loads(line)
        except ValueError:
            return {"error": "one line with a JSON object is expected"}
        match request.get("command"):
            case "status":
                return self.status()
            case "keep":
                self._life.started_by = "up"
                return {"kept": True}
            case "http":
                return await self._listen(request)
            case "down" | "restart" as reason:
                self._life.end(reason)
                unfinished = await self._send_away(reason, float(request.get("seconds", DRAIN_SECONDS)))
                return {"ended": True, "unfinished": unfinished}
            case command:
                return {"error": f"unknown command {command!r}; known are status, keep, http, down and restart"}

    async def _listen(self, request: JsonObject) -> JsonObject:
        try:
            owner = Attachment.read(json.dumps(request.get("owner")).encode())
            url = await self._listening.begin(owner, request.get("host"), request.get("port"))
        except ValueError as error:
            return {"error": str(error)}
        except GatewayError as error:
            return {"error": error.message, **_refusal(error)}
        self._life.started_by = "up"
        return {"url": url}

    def status(self) -> JsonObject:
        """The process, its clients and its servers; times in seconds, memory in bytes."""
        return {
            "pid": os.getpid(),
            "version": __version__,
            "age_seconds": round(time.monotonic() - self._life.started, 3),
            "started_by": self._life.started_by,
            "url": self._listening.url,
            "clients": [_client(profile, member) for profile in self._profiles.all for member in profile.members],
        }

    async def live(self) -> None:
        """Return when the process is to end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_idle)
            await self._life.ending.wait()
            tasks.cancel_scope.cancel()
        await self._send_away(self._life.reason, DRAIN_SECONDS)
        if self._listening.url is not None:
            with anyio.move_on_after(DRAIN_SECONDS):
                await self._listening.closed.wait()

    async def _send_away(self, reason: str, seconds: float) -> int:
        """Have every client leave; how many of them had unanswered requests at the end."""
        outcomes: list[bool] = []

        async def send(member: Member) -> None:
            outcomes.append(await member.send_away(reason, seconds))

        async with anyio.create_task_group() as tasks:
            for member in self._profiles.members:
                tasks.start_soon(send, member)
        return outcomes.count(False)

    async def _end_when_idle(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if self._profiles.members or self._life.started_by != "client":
                self._life.used = time.monotonic()
                continue
            settings = await anyio.to_thread.run_sync(_user_settings, self._paths)
            if time.monotonic() - self._life.used >= settings.local.idle_minutes * 60:
                logger.info("no client for %g minutes: ending", settings.local.idle_minutes)
                self._life.end("idle")


def _user_settings(paths: Paths) -> Settings:
    try:
        return load_user_settings(paths)
    except ConfigurationError:
        return Settings()


def _client(profile: Profile, member: Member) -> JsonObject:
    runtime = profile.runtime
    return {
        "name": member.name,
        "version": "",
        "pid": member.attachment.pid,
        "folder": str(member.attachment.workplace.folder),
        "mode": runtime.gateway.state.settings.gateway.tools_exposure.value if runtime is not None else None,
        "calls": member.calls,
        "since_seconds": round(time.monotonic() - member.since, 3),
    }


def _refusal(error: BaseException) -> JsonObject:
    if isinstance(error, GatewayError):
        code = 2 if isinstance(error, UsageError) else 78 if isinstance(error, ConfigurationError) else 1
        return {"message": error.message, "hint": error.hint or "", "exit": code}
    logger.error("a client could not be served", exc_info=error)
    return {"message": f"the gateway could not serve this client ({type(error).__name__})", "hint": "", "exit": 1}


def is_newer(one: str, other: str) -> bool:
    """Whether a version is strictly newer; what cannot be read is not."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) > Version(other)
    except InvalidVersion:
        return False


async def run(paths: Paths, config_file: Path | None, *, started_by: str = "client") -> int:
    """Be the gateway of a home and configuration until it is to end; the exit code. A second one ends at once."""
    endpoint = Endpoint.of(paths.home, paths.identity(config_file))
    endpoint.prepare()
    life_lock = endpoint.take_life()
    if life_lock is None:
        return 0
    sys.setswitchinterval(TURN_SECONDS)
    _user = await anyio.to_thread.run_sync(_user_settings, paths)
    logs.configure(_user.log if _user.log.level != "info" else LogSettings())
    close_to_others(paths.home)
    tell_lacks(paths)
    life = Life(started_by)
    async with (
        first_signal() as signalled,
        open_shared(paths, local=LocalClients()) as shared,
        anyio.create_task_group() as tasks,
    ):
        listener = endpoint.listen()
        try:
            machine = Machine(Profiles(tasks, shared), Listening(tasks, shared, life.ending), paths, life)
            gc.freeze()
            tasks.start_soon(_accept, endpoint, listener, machine, tasks)

            async def end_on_signal() -> None:
                await signalled.wait()
                life.end("down")

            tasks.start_soon(end_on_signal)
            await machine.live()
        finally:
            endpoint.withdraw()
            listener.close()
        tasks.cancel_scope.cancel()
    # Held to the very end: whoever comes next starts once nothing of this one is left.
    os.close(life_lock)
    return 0


async def _accept(endpoint: Endpoint, listener: socket.socket, machine: Machine, tasks: anyio.abc.TaskGroup) -> None:
    listener.setblocking(False)
    while True:
        await anyio.wait_readable(listener)
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = listener.accept()
            tasks.start_soon(_admit, endpoint, connection, machine)


async def _admit(endpoint: Endpoint, connection: socket.socket, machine: Machine) -> None:
    try:
        await anyio.to_thread.run_sync(endpoint.admit, connection)
    except UnsafeEndpointError as error:
        logger.warning("refused: %s", error)
        connection.close()
        return
    except OSError:
        connection.close()
        return
    await machine.serve(connection)


def main() -> None:
    """What a bridge starts: `python -m pml_gateway.local.server --home HOME --config FILE`."""
    words = argparse.ArgumentParser()
    words.add_argument("--home", required=True)
    words.add_argument("--config", type=Path, required=True)
    words.add_argument("--started-by", default="client")
    given = words.parse_args()
    paths = Paths.from_environ({**Workplace.here().environ, "PML_HOME": given.home, "PML_CONFIG": str(given.config)})
    sys.exit(
        anyio.run(lambda: run(paths, given.config, started_by=given.started_by), backend_options={"use_uvloop": True})
    )


if __name__ == "__main__":
    main()
