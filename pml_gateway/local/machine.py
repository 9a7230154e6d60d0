"""The gateway process of a machine: serves every client that attaches, and ends when told to or when idle."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway import __version__
from pml_gateway.config.load import user_settings_or_defaults
from pml_gateway.errors import GatewayError, UsageError, innermost
from pml_gateway.gateway.shared import SharedResources, open_shared
from pml_gateway.installation import is_newer
from pml_gateway.local.attachment import Attachment
from pml_gateway.local.endpoint import Endpoint, remove
from pml_gateway.local.lines import MAX_LINE
from pml_gateway.local.listening import HttpListener
from pml_gateway.local.profiles import Profiles
from pml_gateway.local.session import Member, restored, serve_operation, serve_session
from pml_gateway.local.status import client_rows, memory_of, server_rows
from pml_gateway.local.up_request import UpRequest
from pml_gateway.log import get_logger
from pml_gateway.owner.connection import LineStream, accept, serve_connection
from pml_gateway.owner.process import DRAIN_SECONDS, ServingProcess
from pml_gateway.owner.results import Ended, Listening
from pml_gateway.paths import Paths
from pml_gateway.processes.framing import OversizedLine
from pml_gateway.reports.status import ProcessStatus, process_status
from pml_gateway.serve.clients import end_local_client
from pml_gateway.serve.limits.descriptors import raise_limit
from pml_gateway.serve.runtime import TURN_SECONDS, Runtime, refresh_on_hangup
from pml_gateway.serve.signals import first_signal
from pml_gateway.storage.places import close_to_others, warn_unwritable_places
from pml_gateway.telemetry import logs
from pml_gateway.text import span
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients

logger = get_logger(__name__)

STARTS = "the gateway of this machine starts"
"""Log message at which the log of one gateway begins, after those of earlier gateways in the same file."""

LOOK_SECONDS = 5.0
"""Seconds between checks for idleness."""

UNUSED_SECONDS = 10.0
"""Seconds that a gateway started by a client waits for the first one."""


@dataclass(slots=True)
class ProcessLifetime:
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


class Machine(ServingProcess):
    """The process that serves all clients of a configuration file, as its connections see it."""

    def __init__(
        self,
        profiles: Profiles,
        shared: SharedResources,
        listening: HttpListener,
        paths: Paths,
        life: ProcessLifetime,
        identity: str,
    ) -> None:
        self._identity = identity
        self._profiles = profiles
        self._shared = shared
        self._listening = listening
        self._paths = paths
        self._life = life
        self._attaching = 0

    @property
    def runtimes(self) -> list[Runtime]:
        """Return the open gateways, those of bridges and the one over HTTP."""
        profiles = [each.runtime for each in self._profiles.all if each.runtime is not None]
        return [*profiles, *self._listening.runtimes]

    async def serve(self, connection: socket.socket) -> None:
        """Serve a connection: perform an operation, or serve a client until it leaves."""
        await serve_connection(self, self._attach, connection)

    async def _attach(self, hello: bytes, lines: LineStream, rest: AsyncIterator[bytes | OversizedLine]) -> None:
        lines.allow_messages(MAX_LINE)
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
        self._attaching += 1
        try:
            member = Member(attachment, lines, memory=restored(attachment.state))
            member.name, member.is_command = (f"pml {asked.name}", True) if asked is not None else ("", False)
            async with self._profiles.entered(member) as entered:
                if entered is None:
                    lines.tell({"alone": True})
                    return
                self._life.has_served = True
                # The answer of an operation includes the warnings.
                runtime, said = entered.runtime, map(str, entered.notes)
                notes = [] if asked else [*said, *attachment.without_effect]
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
            self._attaching -= 1
            if not (self._attaching or self._life.has_served or self._life.started_by != "client"):
                # Refused, or served alone: there is nothing here to keep for another client.
                self._life.end("idle")

    async def expect(self) -> ProcessStatus:
        """Wait for a client as long as after one has left."""
        self._life.has_served, self._life.used = True, time.monotonic()
        return self.snapshot()

    async def keep(self) -> ProcessStatus:
        """Stay until told to end."""
        if self._life.started_by == "client":
            self._life.started_by = "up"
        self._life.write_request()
        return self.snapshot()

    async def http(self, owner: JsonObject, host: str | None = None, port: int | None = None) -> Listening:
        """Serve over HTTP as well, at this address, and stay; return the `url`.

        Raises:
            GatewayError: the owner is malformed, or the configuration cannot be served there.
        """
        try:
            attachment = Attachment.read(json.dumps(owner).encode())
        except ValueError as error:
            raise UsageError(str(error)) from None
        url = await self._listening.begin(self, attachment, host, port)
        # A port that the system chose is kept: clients have the URL.
        self._life.http = {"owner": owner, "host": host, "port": urlsplit(url).port}
        await self.keep()
        return {"url": url}

    def snapshot(self) -> ProcessStatus:
        """Return the state of the process, its clients and its servers."""
        life, listening = self._life, self._listening
        told = process_status(self._identity, self.runtimes, life.started, "machine")
        return {
            **told,
            "is_ending": life.ending.is_set(),
            "started_by": life.started_by,
            "http_clients": listening.clients,
            "not_listening": life.not_listening if listening.url is None else None,
            "memory_bytes": memory_of(os.getpid()),
            "clients": client_rows(self._profiles.all),
            "servers": server_rows(self._shared.upstreams, self._profiles.all),
        }

    async def down(self, seconds: float = DRAIN_SECONDS) -> Ended:
        """End, with time for the calls in flight."""
        return await self._ended("down", seconds)

    async def restart(self, seconds: float = DRAIN_SECONDS) -> Ended:
        """End as by `down`, for another gateway in its place."""
        return await self._ended("restart", seconds)

    async def _ended(self, reason: str, seconds: float) -> Ended:
        self._life.end(reason)
        return {"unfinished": await self._send_away(reason, seconds), "http": self._life.http}

    async def finish(self) -> None:
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
    identity: str,
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
        identity: the configuration file.
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
    life = ProcessLifetime(started_by, endpoint.up_request, http)
    try:
        async with (
            first_signal() as signalled,
            open_shared(paths, local=LocalClients()) as shared,
            shared.approvals.answerable(),
            anyio.create_task_group() as tasks,
        ):
            profiles = Profiles(tasks, shared, paths)
            machine = Machine(profiles, shared, HttpListener(tasks, shared, life.ending), paths, life, identity)
            gc.freeze()
            tasks.start_soon(accept, listener, machine.serve, tasks)
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
            endpoint.make_room()
            # Clients of the next gateway need not wait for requests in flight here.
            endpoint.leave(life_lock)
            await machine.finish()
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
        await machine.http(**http)
    except GatewayError as error:
        if not is_replacement:
            raise
        # The clients of bridges are still served.
        logger.error("nothing is served over HTTP any more: %s", error)
        return str(error)
    return None
