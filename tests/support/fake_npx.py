"""`npx` as far as its cache goes: installs as long as a test wants, and breaks what it had begun when it is killed.

Put on PATH under the name `npx` (`runner_in`). What happens is told in a journal, a word a line: `begun`, `done`,
`killed`, `served`, `left`; and for one that fetches a new version (`update`), `updating`, `terminated`, `taken-back`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = "@scope/server"


def runner_in(folder: Path, name: str = "npx") -> dict[str, str]:
    """The variables of a server that is started by this runner, with a cache and journal in `folder`."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    script = binaries / name
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "npm_config_cache": str(folder / "cache"),
        "FAKE_NPX": str(folder),
    }


def entry(variables: Mapping[str, str], *arguments: str, **more: Any) -> dict[str, Any]:
    """The configuration of a server that this runner starts."""
    return {"command": "npx", "args": ["-y", PACKAGE, *arguments], "env": dict(variables), **more}


def journal(folder: Path) -> list[str]:
    """What happened so far."""
    path = folder / "journal"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def let_finish(folder: Path) -> None:
    """Let the installation that runs, and all that follow, come to their end."""
    (folder / "go").touch()


def update(folder: Path) -> None:
    """Let starts from now on fetch a new version, for longer than any test; a SIGTERM makes them take that back."""
    (folder / "update").touch()


def let_take_back(folder: Path) -> None:
    """Let what was terminated while it fetched a new version come to its end."""
    (folder / "take-back").touch()


def broken_cache(folder: Path) -> Path:
    """What npx leaves behind that was killed while it installed, and started again."""
    path = folder / "cache" / "_npx" / _folder_name(PACKAGE)
    (path / "node_modules").mkdir(parents=True)
    (path / "package.json").write_text(json.dumps({"_npx": {"packages": [PACKAGE]}}), encoding="utf-8")
    return path


def _folder_name(package: str) -> str:
    return hashlib.sha512(package.encode()).hexdigest()[:16]


def _main() -> None:
    home = Path(os.environ["FAKE_NPX"])

    def note(word: str) -> None:
        with (home / "journal").open("a", encoding="utf-8") as stream:
            stream.write(f"{word}\n")

    package = next(word for word in sys.argv[1:] if not word.startswith("-"))
    folder = home / "cache" / "_npx" / _folder_name(package)
    if not (folder / "package.json").exists():
        (folder / "node_modules").mkdir(parents=True, exist_ok=True)

        def killed(*_: object) -> None:
            note("killed")
            (folder / "package.json").write_text(json.dumps({"_npx": {"packages": [package]}}), encoding="utf-8")
            sys.exit(143)

        signal.signal(signal.SIGTERM, killed)
        note("begun")
        sys.stdout.write("Progress: resolved 1, reused 0\n")
        sys.stdout.flush()
        while not (home / "go").exists():
            time.sleep(0.01)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (folder / "node_modules" / "zod").mkdir()
        (folder / "package.json").write_text(json.dumps({"_npx": {"packages": [package]}}), encoding="utf-8")
        note("done")
    if (home / "update").exists():
        _update(home, note)
    if not (folder / "node_modules" / "zod").exists():
        sys.exit(
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from "
            f"{folder}/node_modules/{package}/dist/index.js"
        )
    if "--no-key" in sys.argv:
        sys.exit("API_KEY is missing")
    note("served")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": _answer(message)}) + "\n")
            sys.stdout.flush()
    note("left")


def _update(home: Path, note: Callable[[str], None]) -> None:
    def terminated(*_: object) -> None:
        note("terminated")
        while not (home / "take-back").exists():
            time.sleep(0.01)
        # As npm does, which cannot go on where nobody reads it.
        sys.stderr.write("npm error signal SIGTERM\n")
        sys.stderr.flush()
        note("taken-back")
        sys.exit(143)

    signal.signal(signal.SIGTERM, terminated)
    note("updating")
    while True:
        time.sleep(0.01)


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        case _:
            return {"content": [{"type": "text", "text": "here"}]}


if __name__ == "__main__":
    _main()
