"""Indexes of the gateways of one process: each is built once, also for gateways that ask for it at the same moment."""

from __future__ import annotations

import anyio
import pytest

from pml_gateway.gateway.indexing import OnIndex, SharedIndexes
from pml_gateway.index.search import ToolIndex

pytestmark = pytest.mark.anyio


async def test_gateways_that_ask_at_the_same_moment_get_one_index() -> None:
    indexes, built, given = SharedIndexes(2), list[ToolIndex](), list[ToolIndex]()

    async def build(bring_out: OnIndex) -> bool:
        built.append(ToolIndex.build((), None))
        bring_out(built[-1])
        return True

    async with anyio.create_task_group() as gateways:
        for _ in range(5):
            gateways.start_soon(indexes.provide, ("the same texts",), given.append, build, lambda: False)
    assert len(built) == 1
    assert [each is built[0] for each in given] == [True] * 5
