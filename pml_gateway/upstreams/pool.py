"""The upstreams of one gateway, added and removed with its configuration; gateways of one process share them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, UpstreamSettings
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import Listed, RememberedListing
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.mcp.transport import open_streams as open_transport
from pml_gateway.processes.children import open_children
from pml_gateway.processes.installs import Installs
from pml_gateway.quotas import Visitors
from pml_gateway.upstreams.dialogue.habits import Habits
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.lifecycle import Opener, UpstreamState
from pml_gateway.upstreams.sharing import SharedBy, Sharing, WantedUpstream, stored_digest, wanted_upstreams
from pml_gateway.upstreams.starts import Starts
from pml_gateway.upstreams.upstream import OnFailed, OnListed, Upstream
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization


logger = get_logger(__name__)

MOMENT_SECONDS = 0.4
"""Seconds that upstreams may take to end before the log names those that are waited for."""

DRAIN_SECONDS = 10.0
"""Seconds that calls may still run when a new configuration removes their upstream."""


class Follower(Protocol):
    """A receiver of an upstream's events: the pool of each gateway that uses it."""

    on_listed: OnListed
    on_failed: OnFailed


@dataclass(slots=True)
class Running:
    """A running upstream and its followers."""

    upstream: Upstream
    wanted: WantedUpstream
    scope: anyio.CancelScope
    followers: list[Follower] = field(default_factory=list)


class SharedUpstreams:
    """The upstreams that run in this process, each with its own task; equal requests get the same upstream."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        *,
        logs_dir: Path,
        auth_dir: Path,
        open_streams: OpenStreams,
        local: LocalClients | None,
        installs: Installs | None,
        habits: Habits,
    ) -> None:
        self.local = local
        self.visitors = Visitors()
        self._tasks = tasks
        self._logs_dir = logs_dir
        self._auth_dir = auth_dir
        self._open_streams = open_streams
        self._installs = installs
        self._habits = habits
        self._starts = Starts()
        self._running: dict[Hashable, Running] = {}
        self._open: list[Upstream] = []  # including those without followers
        self._ended_calls: Counter[str] = Counter()

    def follow(
        self, wanted: WantedUpstream, effective: EffectiveSettings, remembered: RememberedListing, follower: Follower
    ) -> Upstream:
        """Return the requested upstream; start it if it is not running.

        `remembered` is what is known of it from before, so that it need not be found out again.
        """
        running = self._running.get(wanted.key)
        if running is None:
            running = self._running[wanted.key] = self._start(effective, remembered, wanted)
        running.followers.append(follower)
        return running.upstream

    def unfollow(self, key: Hashable, follower: Follower) -> None:
        """Undo `follow`; an upstream without followers finishes its calls and ends."""
        running = self._running[key]
        running.followers.remove(follower)
        if not running.followers:
            del self._running[key]
            self._tasks.start_soon(_retire, running.upstream, running.scope)

    @property
    def running(self) -> list[Running]:
        """Return the upstreams that have followers."""
        return [*self._running.values()]

    def calls(self, upstream_id: str) -> int:
        """Return the number of calls sent to a server since this process began, including its ended upstreams."""
        return self._ended_calls[upstream_id] + sum(
            each.calls for each in self._open if each.upstream_id == upstream_id
        )

    async def tell_waited_for(self) -> None:
        """Log which upstreams take more than a moment to end, if any."""
        await anyio.sleep(MOMENT_SECONDS)
        slow = dict.fromkeys(each.upstream_id for each in self._open)
        if slow:
            logger.info("waiting for %s to end", ", ".join(slow))

    def _start(self, effective: EffectiveSettings, remembered: RememberedListing, wanted: WantedUpstream) -> Running:
        upstream_id, working_directory = effective.upstream_id, wanted.sharing.place
        authorization = self._authorization(upstream_id, effective.definition, working_directory)

        def on_listed(upstream: Upstream, listed: Listed) -> None:
            for follower in tuple(running.followers):
                follower.on_listed(upstream, listed)

        def on_failed(upstream: Upstream) -> None:
            for follower in tuple(running.followers):
                follower.on_failed(upstream)

        upstream = Upstream(
            Opener(
                effective,
                self._open_streams,
                self._logs_dir,
                authorization,
                working_directory,
                self._starts,
                self._installs,
            ),
            remembered,
            self._habits.of(effective.definition.fingerprint()),
            local=self.local,
            visitors=self.visitors,
            on_listed=on_listed,
            on_failed=on_failed,
        )
        running = Running(upstream, wanted, anyio.CancelScope())

        async def run() -> None:
            self._open.append(upstream)
            try:
                with running.scope:
                    await upstream.run()
            finally:
                self._open.remove(upstream)
                self._ended_calls[upstream_id] += upstream.calls

        self._tasks.start_soon(run, name=f"upstream {upstream_id}")
        return running

    def _authorization(
        self, upstream_id: str, definition: UpstreamDefinition, working_directory: WorkingDirectory
    ) -> Authorization | None:
        if definition.url is None:
            return None
        # Importing it takes 20 ms on top of the SDK, which gateways with only stdio upstreams never need.
        from pml_gateway.upstreams.auth.authorization import Authorization
        from pml_gateway.upstreams.auth.logins import LoginStore

        return Authorization(
            upstream_id, definition, LoginStore(self._auth_dir), self._tasks.start_soon, working_directory
        )


async def _retire(upstream: Upstream, scope: anyio.CancelScope) -> None:
    await upstream.retire(DRAIN_SECONDS)
    scope.cancel()


@asynccontextmanager
async def open_shared_upstreams(
    *,
    logs_dir: Path,
    auth_dir: Path,
    installs_dir: Path,
    habits_file: Path,
    open_streams: OpenStreams | None = None,
    local: LocalClients | None = None,
) -> AsyncIterator[SharedUpstreams]:
    """Open upstreams whose connections and child processes end with this context; `local` clients share sessions.

    Installations by package runners continue after it, within their time limit.
    """
    with open_children() as children:
        opener = open_streams or partial(open_transport, children=children)
        # If tests open the streams, no command is ever started.
        installs = Installs(installs_dir) if open_streams is None and os.name == "posix" else None
        habits = await anyio.to_thread.run_sync(Habits, habits_file)
        async with anyio.create_task_group() as telling:
            async with anyio.create_task_group() as tasks:
                shared = SharedUpstreams(
                    tasks,
                    logs_dir=logs_dir,
                    auth_dir=auth_dir,
                    open_streams=opener,
                    local=local,
                    installs=installs,
                    habits=habits,
                )
                tasks.start_soon(habits.keep)
                yield shared
                # All are cancelled at once, and end side by side.
                tasks.cancel_scope.cancel()
                telling.start_soon(shared.tell_waited_for)
            telling.cancel_scope.cancel()


class UpstreamPool:
    """All upstreams of one gateway by server id, in configuration order."""

    def __init__(self, shared: SharedUpstreams, working_directory: WorkingDirectory) -> None:
        self.local = shared.local
        self.visitors = shared.visitors
        self.on_listed: OnListed = lambda _upstream, _listed: None
        self.on_joined: OnListed = lambda _upstream, _listed: None
        self.on_failed: OnFailed = lambda _upstream: None
        self.working_directory = working_directory
        self._shared = shared
        self._upstreams: dict[str, Upstream] = {}
        self._keys: dict[str, Hashable] = {}

    @property
    def upstreams(self) -> Mapping[str, Upstream]:
        """Return the running upstreams."""
        return self._upstreams

    def wanted(
        self, definitions: Mapping[str, UpstreamDefinition], defaults: UpstreamSettings
    ) -> dict[str, WantedUpstream]:
        """Return the upstreams that these definitions stand for in this working directory; reads files."""
        local, here = self.local, self.working_directory
        if local is not None and not local.is_alone:
            return wanted_upstreams(definitions, defaults, here)
        # No other client starts servers from another place.
        alone = Sharing(SharedBy.EVERYBODY, "", here)
        shown = defaults.model_dump_json()
        return {
            upstream_id: WantedUpstream(
                (upstream_id, definition.model_dump_json(exclude={"tools"}), stored_digest(definition, here), shown),
                alone,
            )
            for upstream_id, definition in definitions.items()
            if definition.enabled
        }

    def has(self, wanted: Mapping[str, WantedUpstream]) -> bool:
        """Return True if exactly these upstreams run."""
        return self._keys == {upstream_id: each.key for upstream_id, each in wanted.items()}

    def configure(
        self,
        definitions: Mapping[str, UpstreamDefinition],
        defaults: UpstreamSettings,
        remembered: Mapping[str, RememberedListing],
        wanted: Mapping[str, WantedUpstream],
    ) -> None:
        """Start new upstreams, restart changed ones, stop removed ones; leave the rest untouched.

        `remembered` is what is known of upstreams from before, so that it need not be found out again.
        """
        keys = {upstream_id: each.key for upstream_id, each in wanted.items()}
        before, keys_before = self._upstreams, self._keys
        for upstream_id, key in keys_before.items():
            if keys.get(upstream_id) != key:
                self._shared.unfollow(key, self)
        self._upstreams, self._keys = {}, keys
        for upstream_id, key in keys.items():
            if keys_before.get(upstream_id) == key:
                self._upstreams[upstream_id] = before[upstream_id]
                continue
            effective = EffectiveSettings(upstream_id, definitions[upstream_id], defaults)
            known = remembered.get(upstream_id, RememberedListing())
            self._upstreams[upstream_id] = self._shared.follow(wanted[upstream_id], effective, known, self)
        for upstream_id in [each for each, key in keys.items() if keys_before.get(each) != key]:
            self._catch_up(self._upstreams[upstream_id])

    def close(self) -> None:
        """Leave every upstream; those without other followers end."""
        for key in self._keys.values():
            self._shared.unfollow(key, self)
        self._upstreams, self._keys = {}, {}

    def request_all(self) -> None:
        """Connect every upstream that is not connected, and list all again."""
        for upstream in self._upstreams.values():
            upstream.request_connect()

    def connect_missing(self) -> None:
        """Connect every upstream that is not connected; connected ones announce changes of lists, or are polled."""
        for upstream in self._upstreams.values():
            upstream.connect_early()

    async def settled(self, timeout: float) -> bool:
        """Wait until every upstream has answered or failed once, for at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            for upstream in list(self._upstreams.values()):
                await upstream.settled.wait()
        return all(upstream.settled.is_set() for upstream in self._upstreams.values())

    def _catch_up(self, upstream: Upstream) -> None:
        """Repeat to this pool the events that earlier followers of the upstream received."""
        if upstream.last_listed is not None:
            self.on_joined(upstream, replace(upstream.last_listed, announced={}))
        elif upstream.state is UpstreamState.FAILED:
            self.on_failed(upstream)


@asynccontextmanager
async def open_pool(shared: SharedUpstreams, working_directory: WorkingDirectory) -> AsyncIterator[UpstreamPool]:
    """Open the upstreams of one gateway for clients in `working_directory`, and leave them at the end."""
    pool = UpstreamPool(shared, working_directory)
    try:
        yield pool
    finally:
        pool.close()
