"""HTTP beside the bridges: what fails of it, and that its end is waited for."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pml_gateway import __version__
from tests.support.machine import TestMachine, open_machine
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio


def owner(opened: TestMachine) -> dict[str, Any]:
    environ = {"PML_HOME": str(opened.home), "HOME": str(opened.home), "PATH": "/usr/bin"}
    said = {"attach": 1, "version": __version__, "secret": "o" * 40, "pid": 1, "folder": str(opened.home)}
    return {**said, "environ": environ}


async def test_the_end_waits_for_http_that_listens_at_the_second_attempt(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        with socket.create_server(("127.0.0.1", 0)) as other:
            failed = await opened.command("http", port=other.getsockname()[1], owner=owner(opened))
        assert "error" in failed
        assert (await opened.command("http", port=0, owner=owner(opened)))["url"]
        assert not opened.listening.closed.is_set()
