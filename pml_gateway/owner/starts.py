"""Waiting until servers have started, so that the first client finds their tools."""

from __future__ import annotations

import anyio

from pml_gateway.owner.context import OperationContext
from pml_gateway.types import JsonObject


async def start(context: OperationContext, arguments: JsonObject) -> JsonObject:
    """Return the servers that are `ready`, `failed` (with the reason) and `starting` after at most `seconds`."""
    gateway = context.gateway
    gateway.note_request()
    with anyio.move_on_after(float(arguments["seconds"])):
        async with anyio.create_task_group() as tasks:
            for upstream in gateway.pool.upstreams.values():
                tasks.start_soon(upstream.settled.wait)
    failed = {
        name: upstream.unlisted_because
        for name, upstream in gateway.pool.upstreams.items()
        if upstream.last_error is not None
    }
    ready = [name for name, each in gateway.pool.upstreams.items() if each.last_listed is not None]
    starting = [name for name in gateway.pool.upstreams if name not in ready and name not in failed]
    return {"ready": ready, "failed": failed, "starting": starting}
