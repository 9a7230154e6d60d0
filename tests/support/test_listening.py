"""Servers of tests end in order, whatever the test does: the event loop may go on to the next one."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from starlette.responses import Response

from tests.support.listening import listening

pytestmark = pytest.mark.anyio


async def test_a_server_whose_test_failed_leaves_nothing_with_the_loop() -> None:
    with pytest.raises(ExceptionGroup):
        async with listening(Response("first")) as port:
            await _get(port)
            raise ValueError("the test failed")
    async with listening(Response("second")) as port:
        assert await _get(port) == "second"


async def test_a_server_whose_test_was_cancelled_leaves_nothing_with_the_loop() -> None:
    with anyio.CancelScope() as scope:
        async with listening(Response("first")) as port:
            await _get(port)
            scope.cancel()
            await anyio.sleep_forever()
    async with listening(Response("second")) as port:
        assert await _get(port) == "second"


async def _get(port: int) -> str:
    async with httpx2.AsyncClient(timeout=10) as client:
        return (await client.get(f"http://127.0.0.1:{port}/")).text
