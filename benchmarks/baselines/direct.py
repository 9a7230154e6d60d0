"""No gateway: the client talks to the upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.peers import Endpoint, Upstream


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The upstream itself."""
    yield Endpoint(upstream.url, upstream.pid)
