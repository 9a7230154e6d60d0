"""The real third-party servers as `servers:` entries, and server-everything over HTTP."""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.listening import free_port

from .install import Installation, InstallationError

READY_SECONDS = 30
STOP_SECONDS = 10
PORT_ATTEMPTS = 5
"""A port found free may be taken before the server binds it; server-everything cannot report one it chose itself."""

_READY = re.compile(r"listening on port (\d+)")


def real_servers(installation: Installation, folder: Path) -> dict[str, dict[str, Any]]:
    """Entries for everything, filesystem and memory (npm) and time and git (PyPI), working below `folder`."""
    files, repository = folder / "files", folder / "repository"
    files.mkdir(parents=True)
    (files / "hello.txt").write_text("hello from a file\n", encoding="utf-8")
    create_repository(repository)
    memory = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    return {
        "everything": _npm_entry(installation, "server-everything", "stdio"),
        "filesystem": _npm_entry(installation, "server-filesystem", str(files)),
        "memory": {**_npm_entry(installation, "server-memory"), "env": memory},
        "time": _python_entry(installation, "mcp_server_time", "--local-timezone", "Europe/Zurich"),
        "git": _python_entry(installation, "mcp_server_git", "--repository", str(repository)),
    }


@contextmanager
def everything_over_http(installation: Installation) -> Iterator[str]:
    """The URL of a running server-everything on a free loopback port."""
    for _ in range(PORT_ATTEMPTS):
        process = subprocess.Popen(
            [installation.node, installation.script("@modelcontextprotocol/server-everything"), "streamableHttp"],
            env={"PORT": str(free_port())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            port = _announced_port(process)
            if port is not None:
                yield f"http://127.0.0.1:{port}/mcp"
                return
        finally:
            _stop(process)
    raise InstallationError(f"server-everything did not start on any of {PORT_ATTEMPTS} ports")


def _npm_entry(installation: Installation, name: str, *arguments: str) -> dict[str, Any]:
    script = installation.script(f"@modelcontextprotocol/{name}")
    return {"command": str(installation.node), "args": [str(script), *arguments]}


def _python_entry(installation: Installation, module: str, *arguments: str) -> dict[str, Any]:
    return {"command": str(installation.python), "args": ["-m", module, *arguments]}


def create_repository(folder: Path) -> None:
    """A git repository with one commit."""
    git = shutil.which("git")
    if git is None:
        raise InstallationError("git is not on PATH")
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# Sample\n", encoding="utf-8")
    identity = ["-c", "user.name=Sample", "-c", "user.email=sample@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "First commit"]):
        subprocess.run([git, *command], cwd=folder, check=True, timeout=READY_SECONDS, stdin=subprocess.DEVNULL)


def _announced_port(process: subprocess.Popen[str]) -> int | None:
    """The port in the server's ready message, or nothing when it ended before; the pipe is read until it closes."""
    assert process.stderr is not None
    ports: queue.Queue[int | None] = queue.Queue()
    threading.Thread(target=_watch, args=(process.stderr, ports), daemon=True).start()
    try:
        return ports.get(timeout=READY_SECONDS)
    except queue.Empty:
        return None


def _watch(lines: IO[str], ports: queue.Queue[int | None]) -> None:
    with lines:
        for line in lines:
            if match := _READY.search(line):
                ports.put(int(match[1]))
    ports.put(None)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
