"""A task of a client on this machine, whose gateway is killed: the client goes on, and learns what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import scripted_server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

PML = Path(sys.executable).with_name("pml")


class StdioClient:
    """A client of `pml serve`, as raw messages."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._next = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request: its result or its error."""
        self._next += 1
        self._write({"id": self._next, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._next:
                answer: dict[str, Any] = message.get("result") or message["error"]
                return answer
        raise AssertionError(f"{method} was not answered")

    def begin(self) -> None:
        client = {"clientInfo": {"name": "stdio", "version": "1"}, "capabilities": {}}
        self.ask("initialize", protocolVersion="2025-11-25", **client)
        self._write({"method": "notifications/initialized"})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        self._process.stdin.flush()


@contextmanager
def attached(environ: dict[str, str]) -> Iterator[StdioClient]:
    command = [str(PML), "serve"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        yield StdioClient(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        subprocess.run([str(PML), "down"], env=environ, capture_output=True, timeout=60, check=False)


def test_a_task_of_a_killed_gateway_is_interrupted_and_its_client_goes_on(tmp_path: Path) -> None:
    started = tmp_path / "started"
    server = {
        "command": sys.executable,
        "args": [str(Path(scripted_server.__file__))],
        "env": {"PYTHONPATH": os.pathsep.join(sys.path)},
    }
    (tmp_path / "config.yaml").write_text(json.dumps({"servers": {"up": server}}), encoding="utf-8")
    environ = {**os.environ, "PML_HOME": str(tmp_path)}
    with attached(environ) as client:
        client.begin()
        done = client.ask("tools/call", name="up__echo", arguments={"message": "hi"}, task={})["task"]["taskId"]
        assert client.ask("tasks/result", taskId=done)["content"] == [{"type": "text", "text": "hi"}]
        slow = {"seconds": 60, "started": str(started)}
        working = client.ask("tools/call", name="up__slow", arguments=slow, task={})["task"]["taskId"]
        wait_for(started.exists, "the call has reached its server")
        told = subprocess.run(
            [str(PML), "status", "--json"], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        os.kill(json.loads(told.stdout)["gateways"][0]["pid"], signal.SIGKILL)
        statuses = {task["taskId"]: task["status"] for task in client.ask("tasks/list")["tasks"]}
        assert statuses == {done: "completed", working: "failed"}
        assert "interrupted" in client.ask("tasks/get", taskId=working)["statusMessage"]
        assert "interrupted" in client.ask("tasks/result", taskId=working)["message"]
        started.unlink()
        assert client.ask("tools/call", name="up__echo", arguments={"message": "on"})["content"][0]["text"] == "on"
    assert not started.exists()
