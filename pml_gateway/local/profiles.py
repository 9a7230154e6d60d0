"""The gateways of one process: each is shared by all clients with the same configuration file, settings and servers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway.config.findings import Finding
from pml_gateway.config.load import LoadedSettings, user_settings_or_defaults
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, innermost
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.shared import SharedResources
from pml_gateway.gateway.state import GatewayState
from pml_gateway.local.advice import advise, set_up_logs
from pml_gateway.local.attachment import Attachment
from pml_gateway.local.session import Member
from pml_gateway.log import get_logger
from pml_gateway.paths import Paths
from pml_gateway.serve.reload import changed_since
from pml_gateway.serve.runtime import Runtime, open_runtime
from pml_gateway.upstreams.sharing import WantedUpstream, wanted_upstreams

logger = get_logger(__name__)

MOVING_SECONDS = 60.0
"""Seconds that a client's calls in flight get before it moves to another gateway after a configuration change."""

READ_SECONDS = 20.0
"""Time limit in seconds for reading the files of one client; with many other clients at once, it takes about one."""

READ_AT_ONCE = 8

Outcome = Runtime | Exception


class Profile:
    """A gateway and the clients it serves; a separate task opens and closes it."""

    def __init__(
        self, key: Hashable, loaded: LoadedSettings, upstreams: Mapping[str, WantedUpstream], first: Attachment
    ) -> None:
        self.key = key
        self.members: list[Member] = []
        """Its clients, including those that wait for it to open."""
        self.closing = anyio.Event()
        self.closed = anyio.Event()
        self.was_open = False
        self.warm_until = 0.0
        """Monotonic time until which it stays open without clients, as commands have left state in its servers."""
        self.first = first
        """The first client, whose environment and folder the gateway uses, even after that client has left."""
        self._loaded = loaded
        self._upstreams = upstreams
        self._opened = anyio.Event()
        self._outcome: list[Outcome] = []

    @property
    def runtime(self) -> Runtime | None:
        """Return its runtime; None unless it is open."""
        outcome = self._outcome[0] if self._outcome else None
        return None if isinstance(outcome, Exception) else outcome

    async def opened(self) -> Runtime:
        """Wait until it is open, and return its runtime.

        Raises:
            Exception: the error that prevented it from opening.
        """
        await self._opened.wait()
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def hold(self, shared: SharedResources, on_swap: Callable[[Profile], None]) -> None:
        """Keep it open until `closing` is set."""
        first = self.first
        try:
            async with open_runtime(
                self._loaded,
                first.paths,
                identity=first.identity,
                load=first.load,
                on_open=partial(
                    _begin,
                    whose=f"the client of process {first.pid} in {first.working_directory.folder}",
                    on_swap=lambda: on_swap(self),
                ),
                shared=shared,
                working_directory=first.working_directory,
                wanted=self._upstreams,
            ) as runtime:
                runtime.presence.transport = "machine"
                runtime.presence.count_clients = lambda: len(self.members)
                runtime.presence.attached = lambda: [
                    {"client": member.shown, "folder": str(member.attachment.working_directory.folder)}
                    for member in self.members
                ]
                self._outcome.append(runtime)
                self.was_open = True
                self._opened.set()
                await self.closing.wait()
        # A failure of one gateway must not end the others.
        except Exception as error:
            if self.was_open:
                logger.error("the gateway for %s ended", first.working_directory.folder, exc_info=innermost(error))
            self._outcome[:] = [error]
        finally:
            self._opened.set()
            self.closed.set()


async def _begin(gateway: Gateway, whose: str, on_swap: Callable[[], None]) -> None:
    def look(before: GatewayState, after: GatewayState) -> None:
        if before.settings is not after.settings:
            on_swap()

    gateway.current.on_swap(look)
    await advise(gateway, whose)


class Profiles:
    """All gateways of this process, opened when a client needs one and closed when no client uses it."""

    def __init__(self, tasks: anyio.abc.TaskGroup, shared: SharedResources, paths: Paths) -> None:
        """Start without a gateway; `paths` locate the owner's configuration, which decides how the process logs."""
        self._paths = paths
        self._tasks = tasks
        self._shared = shared
        self._profiles: list[Profile] = []
        self._logged: tuple[object, ...] = ()
        self._logged_warnings: tuple[Finding, ...] = ()
        self._readers = anyio.CapacityLimiter(READ_AT_ONCE)

    @property
    def all(self) -> tuple[Profile, ...]:
        """Return the profiles that are open or opening."""
        return tuple(self._profiles)

    @property
    def gateways(self) -> list[Gateway]:
        """Return the open gateways, the last opened one at the end."""
        return [each.runtime.gateway for each in self._profiles if each.runtime is not None]

    @property
    def settings(self) -> Settings | None:
        """Return the settings of the last opened gateway; None if none is open."""
        return self.gateways[-1].state.settings if self.gateways else None

    @property
    def members(self) -> list[Member]:
        """Return all clients."""
        return [member for profile in self._profiles for member in profile.members]

    @asynccontextmanager
    async def entered(self, member: Member) -> AsyncIterator[ClientGateway | None]:
        """Enter a client and yield its gateway; None if the client needs a gateway of its own.

        Raises:
            GatewayError: the client's configuration cannot be served.
        """
        attachment = member.attachment
        read = await self._read(attachment)
        loaded, key = read.loaded, read.key
        if not loaded.settings.local.attach:
            yield None
            return
        profile = next((each for each in self._profiles if each.key == key and not each.closing.is_set()), None)
        if profile is None:
            self._set_up_logs(loaded.settings, read.owner)
            profile = Profile(key, loaded, read.upstreams, attachment)
            self._profiles.append(profile)
            self._tasks.start_soon(self._hold, profile)
        self._log(loaded.warnings)
        profile.members.append(member)
        watching = anyio.CancelScope()
        if attachment.project_file != profile.first.project_file:
            self._tasks.start_soon(self._follow_project, profile, member, watching, loaded.read_at)
        try:
            yield ClientGateway(profile, await profile.opened(), loaded.warnings)
        finally:
            watching.cancel()
            profile.members.remove(member)
            if attachment.keeps_state:
                profile.warm_until = time.monotonic() + loaded.settings.local.idle_minutes * 60
            self.close_unused()

    async def _follow_project(
        self, profile: Profile, member: Member, watching: anyio.CancelScope, read_at: float
    ) -> None:
        """Send a client away if its project file changes its settings: the gateway watches only the first client's."""
        files = {member.attachment.project_file}
        with watching:
            async with self._shared.file_changes.of(files) as changes:
                is_changed = await anyio.to_thread.run_sync(changed_since, files, read_at)
                while True:
                    own = await self._read_or_none(member.attachment) if is_changed else None
                    if own is not None and own.key != profile.key:
                        await member.send_away("restart", MOVING_SECONDS)
                    is_changed = bool(await changes.receive())

    def _log(self, warnings: Sequence[Finding]) -> None:
        """Log warnings, except those just logged for the client before, as most clients share the same settings."""
        for warning in warnings:
            if warning not in self._logged_warnings:
                logger.warning("%s", warning)
        self._logged_warnings = tuple(warnings)

    def _set_up_logs(self, settings: Settings, owner: Settings) -> None:
        # Searching the servers' settings for secrets is slow, and most clients have the same servers.
        logged = (settings.servers, settings.references, settings.telemetry, owner.log)
        if logged != self._logged:
            set_up_logs(settings, owner)
            self._logged = logged

    async def _hold(self, profile: Profile) -> None:
        try:
            await profile.hold(self._shared, self._look_again)
        finally:
            self._profiles.remove(profile)
            # A gateway that failed still has clients: they come back, and another one is opened for them.
            for member in profile.members if profile.was_open else ():
                self._tasks.start_soon(member.send_away, "restart", 0.0)

    def close_unused(self) -> None:
        """Close unused gateways, but keep a last one warm for the next client, and those whose servers hold state."""
        open_ones = [each for each in self._profiles if not each.closing.is_set()]
        unused = [each for each in open_ones if not each.members and each.warm_until <= time.monotonic()]
        for profile in unused if len(unused) < len(open_ones) else unused[:-1]:
            profile.closing.set()

    def _look_again(self, profile: Profile) -> None:
        # The gateway uses the environment of one client: until it is known which others it still fits, none of them
        # may enter or call.
        profile.key = object()
        held = [member for member in profile.members if not member.attachment.is_like(profile.first)]
        for member in held:
            member.hold()
        self._tasks.start_soon(self._part, profile, held)

    async def _part(self, profile: Profile, held: Sequence[Member]) -> None:
        """After a configuration change, release the clients that still fit this gateway and send the others away."""
        read = await self._read_or_none(profile.first)
        if read is not None:
            profile.key = read.key
            self._set_up_logs(read.loaded.settings, read.owner)
        for member in held:
            # Concurrently: the files of one client may hang.
            self._tasks.start_soon(self._settle, profile, member)

    async def _settle(self, profile: Profile, member: Member) -> None:
        own = await self._read_or_none(member.attachment)
        if own is not None and own.key == profile.key:
            member.release()
        else:
            await member.send_away("restart", MOVING_SECONDS)

    async def _read_or_none(self, attachment: Attachment) -> _Configuration | None:
        try:
            return await self._read(attachment)
        # If the configuration is broken or unreadable, the client learns that when it attaches again.
        except Exception as error:  # noqa: BLE001
            logger.debug("cannot be served any more: %s", error)
            return None

    async def _read(self, attachment: Attachment) -> _Configuration:
        """Read a client's current configuration.

        Raises:
            ConfigurationError: it cannot be served, or its files cannot be read in time.
        """
        with anyio.move_on_after(READ_SECONDS):
            # With a separate limiter, so that files that hang do not use up the threads of clients being served.
            return await anyio.to_thread.run_sync(
                _configuration, attachment, self._paths, abandon_on_cancel=True, limiter=self._readers
            )
        raise ConfigurationError(
            f"the settings for {attachment.working_directory.folder} could not be read within {READ_SECONDS:g} s",
            hint="a file of them, or of variables of a server, is on a disk or a pipe that does not answer",
        )


@dataclass(frozen=True, slots=True)
class ClientGateway:
    """The gateway of a client, and the warnings about the client's settings."""

    profile: Profile
    runtime: Runtime
    notes: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Configuration:
    """A client's current configuration: its settings, its servers, its key for sharing, and the owner's settings."""

    loaded: LoadedSettings
    upstreams: Mapping[str, WantedUpstream]
    key: Hashable
    owner: Settings


def _configuration(attachment: Attachment, paths: Paths) -> _Configuration:
    loaded = attachment.load()
    settings = loaded.settings
    upstreams = wanted_upstreams(settings.servers, settings.upstreams, attachment.working_directory)
    return _Configuration(loaded, upstreams, attachment.key(loaded, upstreams), user_settings_or_defaults(paths))
