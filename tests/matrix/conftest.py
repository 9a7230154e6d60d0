from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from tests.matrix.server import Era, matrix_server
from tests.support.listening import listening, sse_app
from tests.support.serving import LIMIT, Serving, serving

UPSTREAMS: dict[str, Era] = {
    "stdio_old": "old",
    "stdio_new": "new",
    "http_old": "old",
    "http_new": "new",
    "sse_old": "old",
}
"""Every upstream of the matrix and its era; the transport of 2024-11-05 exists in the old one only."""

Matrix = Callable[[], AbstractAsyncContextManager[Serving]]


async def over_the_network(stack: AsyncExitStack) -> dict[str, dict[str, Any]]:
    """The entries of the upstreams that listen, until the stack ends."""
    entries = dict[str, dict[str, Any]]()
    for name in ("http_old", "http_new"):
        app = matrix_server(UPSTREAMS[name]).server().streamable_http_app()
        entries[name] = {"url": f"http://127.0.0.1:{await stack.enter_async_context(listening(app))}/mcp"}
    port = await stack.enter_async_context(listening(sse_app(matrix_server("old").server())))
    entries["sse_old"] = {"url": f"http://127.0.0.1:{port}/sse", "type": "sse"}
    return entries


@pytest.fixture
def matrix(tmp_path: Path) -> Matrix:
    """A gateway in front of all of them, listing everything."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[Serving]:
        memory = {name: matrix_server(era) for name, era in UPSTREAMS.items() if name.startswith("stdio")}
        entries: dict[str, dict[str, Any]] = {name: {"command": f"in-memory-{name}"} for name in memory}
        async with AsyncExitStack() as stack:
            entries |= await over_the_network(stack)
            settings = Settings.model_validate({"servers": entries, "gateway": {"tools_exposure": "full_proxy"}})
            served = await stack.enter_async_context(serving(tmp_path, memory, settings))
            for upstream in served.gateway.pool.upstreams.values():
                with anyio.fail_after(LIMIT):
                    await upstream.connector.settled.wait()
                assert upstream.last_listed is not None, (upstream.upstream_id, upstream.connector.last_error)
            # Settled upstreams become lists a moment later.
            assert await served.gateway.refresh(LIMIT)
            yield served

    return serve
