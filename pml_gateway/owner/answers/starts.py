"""Starts of servers: waiting for them, asking all of them anew, and examining what came of it."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.clients.places import Surroundings
from pml_gateway.config.findings import run_checks
from pml_gateway.owner.answering import telling
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import Started
from pml_gateway.reports.doctor.cases import Examined, StartedCase
from pml_gateway.reports.doctor.examine import STARTED_CHECKS
from pml_gateway.reports.doctor.servers import StderrTail
from pml_gateway.reports.status import ProcessStatus, gateway_status, read_logins

INDEX_SECONDS = 60.0


async def start(context: OperationContext, seconds: float) -> Started:
    """Return the servers that are `ready`, `failed` (with the reason) and `starting` after at most `seconds`."""
    gateway = context.gateway
    gateway.note_request()
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:
            for upstream in gateway.pool.upstreams.values():
                tasks.start_soon(upstream.connector.settled.wait)
    failed = {
        name: upstream.unlisted_because
        for name, upstream in gateway.pool.upstreams.items()
        if upstream.connector.last_error is not None
    }
    ready = [name for name, each in gateway.pool.upstreams.items() if each.last_listed is not None]
    starting = [name for name in gateway.pool.upstreams if name not in ready and name not in failed]
    return {"ready": ready, "failed": failed, "starting": starting}


async def probe(context: OperationContext, seconds: float | None) -> ProcessStatus:
    """Return the status of every server after each has listed its tools again."""
    async with telling(context):
        await context.listed_now(seconds)
    await read_logins(context.gateway)
    return gateway_status(context.gateway)


async def examine(context: OperationContext, seconds: float | None, folder: str) -> Examined:
    """Return the findings on every server, for clients of a folder, after each has listed its tools again."""
    gateway, here = context.gateway, context.gateway.pool.working_directory
    last_words = StderrTail(context.paths.logs_dir, gateway.state.settings.servers)
    async with telling(context):
        waited = await context.listed_now(seconds)
    context.tell({"progress": "indexing the tools"})
    is_indexed = await gateway.indexer.wait(INDEX_SECONDS)
    context.tell({"progress": "reading what servers say of themselves"})
    await gateway.reading.judge_unread()
    started = StartedCase(
        gateway.state.settings,
        here.environ,
        gateway.state,
        gateway.trust_gate,
        gateway.pool.upstreams,
        gateway_status(gateway)["upstreams"],
        gateway.silent,
        Surroundings.here(Path(folder), here.environ),
        dict(gateway.shared.exceeded),
        last_words.of,
        waited,
        is_indexed,
    )
    return Examined(tuple(await anyio.to_thread.run_sync(run_checks, STARTED_CHECKS, started)))
