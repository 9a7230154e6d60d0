"""The configured upstreams, each with a task of its own, added and removed as the configuration changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, UpstreamSettings
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import Remembered
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.mcp.transport import open_streams as open_transport
from pml_gateway.processes.children import open_children
from pml_gateway.processes.installs import Installs
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.lifecycle import Opener, UpstreamState
from pml_gateway.upstreams.upstream import OnFailed, OnListed, Upstream

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization


logger = get_logger(__name__)

MOMENT_SECONDS = 0.4
"""How long upstreams may take to end before it is said which are waited for."""

DRAIN_SECONDS = 10.0
"""How long the calls of an upstream that a new configuration removes may still run."""


class UpstreamPool:
    """Every upstream by server id, in configuration order."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        *,
        logs_dir: Path,
        auth_dir: Path,
        open_streams: OpenStreams,
        local: LocalClients | None,
        installs: Installs | None,
    ) -> None:
        self.local = local
        self.on_listed: OnListed = lambda _upstream, _listed: None
        self.on_failed: OnFailed = lambda _upstream: None
        self._tasks = tasks
        self._logs_dir = logs_dir
        self._auth_dir = auth_dir
        self._open_streams = open_streams
        self._installs = installs
        self._upstreams: dict[str, Upstream] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._open: dict[str, int] = {}  # also those that a new configuration has replaced

    @property
    def upstreams(self) -> Mapping[str, Upstream]:
        """The upstreams that run now."""
        return self._upstreams

    def configure(
        self,
        definitions: Mapping[str, UpstreamDefinition],
        defaults: UpstreamSettings,
        remembered: Mapping[str, Remembered],
    ) -> None:
        """Start what is new, restart what changed, stop what is gone; the rest is not touched.

        What is remembered of an upstream need not be found out again.
        """
        wanted = {upstream_id: definition for upstream_id, definition in definitions.items() if definition.enabled}
        for upstream_id, upstream in list(self._upstreams.items()):
            if wanted.get(upstream_id) != upstream.definition or upstream.defaults != defaults:
                del self._upstreams[upstream_id]
                self._tasks.start_soon(_retire, upstream, self._scopes.pop(upstream_id))
        running = self._upstreams
        self._upstreams = {}
        for upstream_id, definition in wanted.items():
            self._upstreams[upstream_id] = running.get(upstream_id) or self._start(
                upstream_id, definition, defaults, remembered.get(upstream_id, Remembered())
            )

    def request_all(self) -> None:
        """Connect every upstream that is not, and list every one anew."""
        for upstream in self._upstreams.values():
            upstream.request_connect()

    def connect_missing(self) -> None:
        """Connect every upstream that is not; those that are have listed, and say when that changes or are polled."""
        for upstream in self._upstreams.values():
            if upstream.state is not UpstreamState.READY:
                upstream.request_connect()

    async def settled(self, timeout: float) -> bool:
        """Wait until every upstream has answered or failed once, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            for upstream in list(self._upstreams.values()):
                await upstream.settled.wait()
        return all(upstream.settled.is_set() for upstream in self._upstreams.values())

    async def tell_waited_for(self) -> None:
        """Say which upstreams take more than a moment to end, if any do."""
        await anyio.sleep(MOMENT_SECONDS)
        slow = [name for name, number in self._open.items() if number]
        if slow:
            logger.info("waiting for %s to end", ", ".join(slow))

    def _start(
        self, upstream_id: str, definition: UpstreamDefinition, defaults: UpstreamSettings, remembered: Remembered
    ) -> Upstream:
        effective = EffectiveSettings(upstream_id, definition, defaults)
        authorization = self._authorization(upstream_id, definition)
        upstream = Upstream(
            Opener(effective, self._open_streams, self._logs_dir, authorization, self._installs),
            remembered,
            local=self.local,
            on_listed=lambda listing, listed: self.on_listed(listing, listed),
            on_failed=lambda failing: self.on_failed(failing),
        )
        scope = self._scopes[upstream_id] = anyio.CancelScope()

        async def run() -> None:
            self._open[upstream_id] = self._open.get(upstream_id, 0) + 1
            try:
                with scope:
                    await upstream.run()
            finally:
                self._open[upstream_id] -= 1

        self._tasks.start_soon(run, name=f"upstream {upstream_id}")
        return upstream

    def _authorization(self, upstream_id: str, definition: UpstreamDefinition) -> Authorization | None:
        if definition.url is None:
            return None
        # It takes 20 ms to import beside the SDK, which gateways with stdio upstreams alone never need.
        from pml_gateway.upstreams.auth.authorization import Authorization
        from pml_gateway.upstreams.auth.logins import LoginStore

        return Authorization(upstream_id, definition, LoginStore(self._auth_dir), self._tasks.start_soon)


async def _retire(upstream: Upstream, scope: anyio.CancelScope) -> None:
    await upstream.retire(DRAIN_SECONDS)
    scope.cancel()


@asynccontextmanager
async def open_pool(
    *,
    logs_dir: Path,
    auth_dir: Path,
    installs_dir: Path,
    open_streams: OpenStreams | None = None,
    local: LocalClients | None = None,
) -> AsyncIterator[UpstreamPool]:
    """A pool whose connections and child processes end with this context; its `local` clients share sessions.

    What package runners install goes on after it, within its limit.
    """
    with open_children() as children:
        opener = open_streams or partial(open_transport, children=children)
        # Where tests open the streams, no command is ever started.
        installs = Installs(installs_dir) if open_streams is None and os.name == "posix" else None
        async with anyio.create_task_group() as telling:
            async with anyio.create_task_group() as tasks:
                pool = UpstreamPool(
                    tasks, logs_dir=logs_dir, auth_dir=auth_dir, open_streams=opener, local=local, installs=installs
                )
                yield pool
                # All are asked at once, and end side by side.
                tasks.cancel_scope.cancel()
                telling.start_soon(pool.tell_waited_for)
            telling.cancel_scope.cancel()
