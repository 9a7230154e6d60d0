"""The upstreams of one gateway, added and removed with its configuration; gateways of one process share them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from cachetools import LRUCache

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import RememberedListing
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.mcp.transport import open_streams as open_transport
from pml_gateway.paths import Paths
from pml_gateway.processes.children import open_children
from pml_gateway.processes.installs import Installs
from pml_gateway.quotas import Visitors
from pml_gateway.upstreams.connector import UpstreamState
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.question_probe import ServerObservations
from pml_gateway.upstreams.dialogue.session_policy import session_policy
from pml_gateway.upstreams.sharing import WantedUpstream, wanted_upstreams
from pml_gateway.upstreams.starts import Opener, Starts
from pml_gateway.upstreams.upstream import Follower, Upstream
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization


logger = get_logger(__name__)

MOMENT_SECONDS = 0.4
"""Seconds that upstreams may take to end before the log names those that are waited for."""

MAX_OBSERVED = 300
"""Maximum number of server definitions whose observations are kept; the least recently started are dropped first."""

DRAIN_SECONDS = 10.0
"""Seconds that calls may still run when a new configuration removes their upstream."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running upstream."""

    upstream: Upstream
    wanted: WantedUpstream
    scope: anyio.CancelScope


@dataclass(slots=True, eq=False)
class SharedUpstreams:
    """The upstreams that run in this process, each with its own task; equal requests get the same upstream."""

    tasks: anyio.abc.TaskGroup
    paths: Paths
    open_streams: OpenStreams
    local: LocalClients | None
    installs: Installs | None
    visitors: Visitors = field(default_factory=Visitors)
    running: dict[Hashable, Running] = field(default_factory=dict)
    _observations: LRUCache[str, ServerObservations] = field(default_factory=lambda: LRUCache(MAX_OBSERVED))
    _starts: Starts = field(default_factory=Starts)
    _open: list[Upstream] = field(default_factory=list)  # including those without followers
    _ended_calls: Counter[str] = field(default_factory=Counter)

    @property
    def is_shared(self) -> bool:
        """Return True if gateways for several folders may use them."""
        return self.local is not None and not self.local.is_alone

    def follow(self, wanted: WantedUpstream, remembered: RememberedListing, follower: Follower) -> Upstream:
        """Return the requested upstream; start it if it is not running.

        `remembered` is what is known of it from before, so that it need not be found out again.
        """
        running = self.running.get(wanted.key)
        if running is None:
            running = self.running[wanted.key] = self._start(wanted, remembered)
        running.upstream.followers.append(follower)
        return running.upstream

    def unfollow(self, key: Hashable, follower: Follower) -> None:
        """Undo `follow`; an upstream without followers finishes its calls and ends."""
        running = self.running[key]
        running.upstream.followers.remove(follower)
        if not running.upstream.followers:
            del self.running[key]
            self.tasks.start_soon(_retire, running.upstream, running.scope)

    def calls(self, upstream_id: str) -> int:
        """Return the number of calls sent to a server since this process began, including its ended upstreams."""
        return self._ended_calls[upstream_id] + sum(
            each.activity.sent_calls for each in self._open if each.upstream_id == upstream_id
        )

    async def tell_waited_for(self) -> None:
        """Log which upstreams take more than a moment to end, if any."""
        await anyio.sleep(MOMENT_SECONDS)
        slow = dict.fromkeys(each.upstream_id for each in self._open)
        if slow:
            logger.info("waiting for %s to end", ", ".join(slow))

    def _start(self, wanted: WantedUpstream, remembered: RememberedListing) -> Running:
        effective = wanted.effective
        upstream_id, working_directory = effective.upstream_id, wanted.sharing.place
        authorization = self._authorization(upstream_id, effective.definition, working_directory)
        upstream = Upstream(
            Opener(
                effective,
                self.open_streams,
                self.paths.logs_dir,
                authorization,
                working_directory,
                self._starts,
                self.installs,
            ),
            remembered,
            self._observed(effective.definition.fingerprint()),
            session_policy(effective, self.local),
            self.visitors,
        )
        running = Running(upstream, wanted, anyio.CancelScope())

        async def run() -> None:
            self._open.append(upstream)
            try:
                with running.scope:
                    await upstream.run()
            finally:
                self._open.remove(upstream)
                self._ended_calls[upstream_id] += upstream.activity.sent_calls

        self.tasks.start_soon(run, name=f"upstream {upstream_id}")
        return running

    def _observed(self, fingerprint: str) -> ServerObservations:
        """Return what was observed of a server with this definition."""
        return self._observations.setdefault(fingerprint, ServerObservations())

    def _authorization(
        self, upstream_id: str, definition: UpstreamDefinition, working_directory: WorkingDirectory
    ) -> Authorization | None:
        if definition.url is None:
            return None
        # Importing it takes 20 ms on top of the SDK, which gateways with only stdio upstreams never need.
        from pml_gateway.upstreams.auth.authorization import Authorization
        from pml_gateway.upstreams.auth.logins import LoginStore

        return Authorization(
            upstream_id, definition, LoginStore(self.paths.auth_dir), self.tasks.start_soon, working_directory
        )


async def _retire(upstream: Upstream, scope: anyio.CancelScope) -> None:
    await upstream.retire(DRAIN_SECONDS)
    scope.cancel()


@asynccontextmanager
async def open_shared_upstreams(
    paths: Paths, *, open_streams: OpenStreams | None = None, local: LocalClients | None = None
) -> AsyncIterator[SharedUpstreams]:
    """Open upstreams whose connections and child processes end with this context; `local` clients share sessions.

    Installations by package runners continue after it, within their time limit.
    """
    with open_children() as children:
        opener = open_streams or partial(open_transport, children=children)
        # If tests open the streams, no command is ever started.
        installs = Installs(paths.installs_dir) if open_streams is None and os.name == "posix" else None
        async with anyio.create_task_group() as telling:
            async with anyio.create_task_group() as tasks:
                shared = SharedUpstreams(tasks, paths, opener, local, installs)
                yield shared
                # All are cancelled at once, and end side by side.
                tasks.cancel_scope.cancel()
                telling.start_soon(shared.tell_waited_for)
            telling.cancel_scope.cancel()


class UpstreamPool:
    """All upstreams of one gateway by server id, in configuration order, followed by `follower`."""

    def __init__(self, shared: SharedUpstreams, working_directory: WorkingDirectory, follower: Follower) -> None:
        self.local = shared.local
        self.visitors = shared.visitors
        self.working_directory = working_directory
        self._shared = shared
        self._follower = follower
        self.upstreams: Mapping[str, Upstream] = {}
        self._keys: dict[str, Hashable] = {}

    def wanted(
        self, definitions: Mapping[str, UpstreamDefinition], defaults: UpstreamSettings
    ) -> dict[str, WantedUpstream]:
        """Return the upstreams that these definitions stand for in this working directory; reads files."""
        return wanted_upstreams(definitions, defaults, self.working_directory, is_shared=self._shared.is_shared)

    def has(self, wanted: Mapping[str, WantedUpstream]) -> bool:
        """Return True if exactly these upstreams run."""
        return self._keys == {upstream_id: each.key for upstream_id, each in wanted.items()}

    def configure(self, wanted: Mapping[str, WantedUpstream], remembered: Mapping[str, RememberedListing]) -> None:
        """Start new upstreams, restart changed ones, stop removed ones; leave the rest untouched.

        `remembered` is what is known of upstreams from before, so that it need not be found out again.
        """
        keys = {upstream_id: each.key for upstream_id, each in wanted.items()}
        keys_before, self._keys = self._keys, keys
        for upstream_id, key in keys_before.items():
            if keys.get(upstream_id) != key:
                self._shared.unfollow(key, self._follower)
        kept = {each: upstream for each, upstream in self.upstreams.items() if keys.get(each) == keys_before[each]}
        self.upstreams = {
            upstream_id: kept.get(upstream_id)
            or self._shared.follow(each, remembered.get(upstream_id, RememberedListing()), self._follower)
            for upstream_id, each in wanted.items()
        }
        for upstream_id in [each for each in keys if each not in kept]:
            self._catch_up(self.upstreams[upstream_id])

    def close(self) -> None:
        """Leave every upstream; those without other followers end."""
        for key in self._keys.values():
            self._shared.unfollow(key, self._follower)
        self.upstreams, self._keys = {}, {}

    def request_all(self) -> None:
        """Connect every upstream that is not connected, and list all again."""
        for upstream in self.upstreams.values():
            upstream.connector.request_connect()

    def connect_missing(self) -> None:
        """Connect every upstream that is not connected; connected ones announce changes of lists, or are polled."""
        for upstream in self.upstreams.values():
            upstream.connector.connect_early()

    async def settled(self, timeout: float) -> bool:
        """Wait until every upstream has answered or failed once, for at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            for upstream in list(self.upstreams.values()):
                await upstream.connector.settled.wait()
        return all(upstream.connector.settled.is_set() for upstream in self.upstreams.values())

    def _catch_up(self, upstream: Upstream) -> None:
        """Repeat to this gateway the events that earlier followers of the upstream received."""
        if upstream.last_listed is not None:
            self._follower.joined(upstream, replace(upstream.last_listed, announced={}))
        elif upstream.connector.state is UpstreamState.FAILED:
            self._follower.failed(upstream)
