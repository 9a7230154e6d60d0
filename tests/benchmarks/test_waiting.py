"""The clients of `run_waiting` all get the result that they wait for, and take no thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.run_waiting import of_gateway, of_sdk

pytestmark = pytest.mark.anyio


async def test_every_client_gets_the_result_and_none_takes_a_thread(tmp_path: Path) -> None:
    bytes_each, threads = await of_gateway(10, tmp_path)
    assert bytes_each > 0
    assert threads == 0
    assert (await of_sdk(10))[1] == 0
