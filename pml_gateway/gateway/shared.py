"""Resources shared by the gateways of one process: running servers, workers, and caches of the same tools."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from pml_gateway.catalog.manifest import Manifest
from pml_gateway.catalog.model import Catalog
from pml_gateway.gateway.indexing import SharedIndexes
from pml_gateway.gateway.single_flight_cache import SingleFlightCache
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.paths import Paths
from pml_gateway.processes.workers import Workers, open_workers
from pml_gateway.requests.library import RequestLibrary
from pml_gateway.requests.sources import ToolRequests
from pml_gateway.state.file_changes import FileChanges
from pml_gateway.telemetry.observe import DecisionsLog
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.pool import SharedUpstreams, open_shared_upstreams

KEPT = 2
"""Indexes that are kept for the next gateway with the same tools: most clients of a machine have the same ones."""

MADE_KEPT = 4
"""Number of catalogs and the like that are kept: the current and the previous, in two ways of naming."""


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Opened once a process by `open_shared`, and given to each of its gateways."""

    upstreams: SharedUpstreams
    workers: Workers
    requests: ToolRequests
    indexes: SharedIndexes
    manifests: SingleFlightCache[Manifest]
    catalogs: SingleFlightCache[Catalog]
    file_changes: FileChanges
    decisions: DecisionsLog = field(default_factory=DecisionsLog)
    began: float = field(default_factory=time.monotonic)


@asynccontextmanager
async def open_shared(
    paths: Paths, *, open_streams: OpenStreams | None = None, local: LocalClients | None = None
) -> AsyncIterator[SharedResources]:
    """Open the shared resources; children and sessions end with this context.

    Args:
        paths: where state lives.
        open_streams: opens the transport of each upstream.
        local: the clients on this machine, which share the sessions of servers; None where there are none.
    """
    async with (
        open_shared_upstreams(
            logs_dir=paths.logs_dir,
            auth_dir=paths.auth_dir,
            installs_dir=paths.installs_dir,
            habits_file=paths.habits_file,
            open_streams=open_streams,
            local=local,
        ) as upstreams,
        open_workers() as workers,
        anyio.create_task_group() as tasks,
    ):
        several = local is not None and not local.is_alone
        kept = MADE_KEPT if several else 0
        file_changes = FileChanges()
        tasks.start_soon(file_changes.run)
        yield SharedResources(
            upstreams,
            workers,
            ToolRequests(RequestLibrary(paths.requests_dir)),
            SharedIndexes(KEPT if several else 0),
            SingleFlightCache(kept),
            SingleFlightCache(kept),
            file_changes,
        )
        tasks.cancel_scope.cancel()
