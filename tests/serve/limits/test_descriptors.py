"""Open files: as many as this process may have, most of them for connections, and some for everything else."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pml_gateway.serve.limits.descriptors import ENOUGH, RESERVE, connections_within
from tests.support.attacks import is_served, request, until_served
from tests.support.process import environment, listening, write_settings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc"),
]

FEW = 350


def limited(soft: int, hard: int, command: list[str]) -> list[str]:
    """A command that may open so many files."""
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh", *command]


@pytest.mark.parametrize(("soft", "hard", "raised"), [(100, 1000, 1000), (1000, 1000, 1000)])
def test_a_process_may_open_as_many_files_as_the_system_allows(soft: int, hard: int, raised: int) -> None:
    script = "from pml_gateway.serve.limits.descriptors import raise_limit; print(raise_limit())"
    done = subprocess.run(
        limited(soft, hard, [sys.executable, "-c", script]), capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) == min(raised, ENOUGH)


@pytest.mark.parametrize(
    ("descriptors", "wanted", "served"), [(65_536, 2000, 2000), (1024, 2000, 1024 - RESERVE), (300, 2000, 150)]
)
def test_connections_leave_files_for_everything_else(
    descriptors: int, wanted: int, served: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert connections_within(descriptors, wanted) == served
    assert ("http.max_connections" in caplog.text) is (served < wanted)


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A gateway that may open few files, as its process id and URL."""
    config = write_settings(tmp_path, {"servers": {"up": {"command": "true"}}})
    command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", "0", "--config", str(config)]
    with listening(limited(FEW, FEW, command), environment(tmp_path), tmp_path) as (process, url, _):
        yield process.pid, url


async def test_more_connections_than_open_files_leave_some_for_servers(crowded: tuple[int, str]) -> None:
    pid, url = crowded
    address = url.split("/")[2].split(":")
    with ExitStack() as stack:
        for _ in range(2 * FEW):
            attacker = stack.enter_context(socket.create_connection((address[0], int(address[1]))))
            attacker.sendall(request(url, b"{", length=5000))
        assert (await is_served(url)).endswith(b" 503 Service Unavailable")
        opened = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # not a blocking read
        assert FEW // 3 < opened < FEW - 64
    await until_served(url)
