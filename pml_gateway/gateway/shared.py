"""The resources of the process: running servers, workers, files, and caches of what several folders have alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from pml_gateway.activity.audit import Audit, open_audit
from pml_gateway.activity.recorder import Recorder, open_recorder
from pml_gateway.catalog.manifest import Manifest
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.file_changes import FileChanges
from pml_gateway.example_queries.library import ExampleLibrary
from pml_gateway.example_queries.sources import ToolExamples
from pml_gateway.gateway.approval_history import ApprovalHistory
from pml_gateway.gateway.approval_notices import ApprovalNotices
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.gateway.indexing import SharedIndexes
from pml_gateway.gateway.limits import CallLimits
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.paths import Paths
from pml_gateway.processes.budget import exceeded_schemas
from pml_gateway.processes.workers import Workers, open_workers
from pml_gateway.results.learning import ShapesFile
from pml_gateway.storage.single_flight_cache import SingleFlightCache
from pml_gateway.telemetry.observe import DecisionsLog
from pml_gateway.trust.pins import Pins
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.pool import SharedUpstreams, open_shared_upstreams

KEPT = 2
"""Indexes that are kept for the next gateway with the same tools: most clients of a machine have the same ones."""

MADE_KEPT = 4
"""Number of catalogs and the like that are kept: the current and the previous, in two ways of naming."""


class SharedResources:
    """Opened once a process by `open_shared`, and given to each of its gateways."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        paths: Paths,
        upstreams: SharedUpstreams,
        workers: Workers,
        activity: Recorder,
        audit: Audit,
    ) -> None:
        self.upstreams = upstreams
        self.workers = workers
        self.activity = activity
        self.audit = audit
        kept = MADE_KEPT if upstreams.is_shared else 0
        self.examples = ToolExamples(ExampleLibrary(paths.example_queries_dir))
        self.indexes = SharedIndexes(KEPT if upstreams.is_shared else 0)
        self.manifests = SingleFlightCache[Manifest](kept)
        self.pins = SingleFlightCache[Pins](kept)
        self.catalogs = SingleFlightCache[Catalog](kept)
        self.decisions = DecisionsLog()
        self.approvals = Approvals(ApprovalHistory(paths.approvals_file, paths.auth_dir))
        self.call_limits = CallLimits()
        self.file_changes = FileChanges()
        self._tasks = tasks
        self.exceeded = exceeded_schemas()
        self._shapes: dict[Path, ShapesFile] = {}
        tasks.start_soon(self.file_changes.run)
        tasks.start_soon(ApprovalNotices(self.approvals).run)

    def shapes_of(self, manifest: Path) -> ShapesFile:
        """Return the learned output shapes that are kept next to a manifest."""
        if manifest not in self._shapes:
            self._shapes[manifest] = ShapesFile(manifest.with_suffix(".shapes.json"))
            self._tasks.start_soon(self._shapes[manifest].run)
        return self._shapes[manifest]


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
        open_shared_upstreams(paths, open_streams=open_streams, local=local) as upstreams,
        open_workers() as workers,
        open_recorder(paths.activity_file) as activity,
        open_audit() as audit,
        anyio.create_task_group() as tasks,
    ):
        yield SharedResources(tasks, paths, upstreams, workers, activity, audit)
        tasks.cancel_scope.cancel()
