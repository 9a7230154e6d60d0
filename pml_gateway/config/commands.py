"""The command of a server becomes what keeps it from starting here, with the remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

RUNNERS = ("npx", "node", "npm", "pnpm", "bunx", "deno", "uvx", "uv", "python", "python3", "pipx", "docker", "podman")

MAX_COMMANDS = 20_000
"""Commands that are compared with a mistyped one."""

_NODE = "install Node.js, which brings it: https://nodejs.org"
_UV = "install uv, which brings it: https://docs.astral.sh/uv"
_SOURCES: Mapping[str, str] = {
    "npx": _NODE,
    "npm": _NODE,
    "node": _NODE,
    "pnpm": "install it with: npm install -g pnpm",
    "bunx": "install Bun, which brings it: https://bun.sh",
    "deno": "install Deno: https://deno.com",
    "uvx": _UV,
    "uv": _UV,
    "pipx": "install it with: python3 -m pip install --user pipx",
    "docker": "install Docker: https://docs.docker.com/get-docker",
    "podman": "install Podman: https://podman.io",
}
"""Where the usual runners come from."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a command cannot start, and what helps."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def obstacles(command: str, *, server: str, folder: str | None, path: str | None) -> Iterator[Obstacle]:
    """What keeps the `command` of a server from starting in `folder`, looked for in the folders of `path`."""
    if folder and not Path(folder).expanduser().is_dir():
        yield Obstacle(f"working directory {folder} does not exist", f"create it, or correct servers.{server}.cwd")
    is_path = "/" in command or "\\" in command
    candidate = str(Path(folder or "") / Path(command).expanduser()) if is_path else command
    if shutil.which(candidate, path=path) is not None:
        return
    if is_path and Path(candidate).is_file():
        yield Obstacle(f"command {command} is not executable", f"chmod +x {candidate}")
        return
    name = Path(command).name
    if name in _SOURCES:
        yield Obstacle(f"command {command} is not found", _SOURCES[name])
        return
    near = _nearest(name, path)
    remedy = f"did you mean {near}?" if near else f"install it, or correct servers.{server}.command"
    yield Obstacle(f"command {command} is not found", remedy)


def _nearest(name: str, path: str | None) -> str | None:
    """The installed command that `name` was probably meant to be: one of the usual runners, else any."""
    runners = [runner for runner in RUNNERS if shutil.which(runner, path=path)]
    near = get_close_matches(name, runners, n=1, cutoff=0.7)
    near = near or get_close_matches(name, _installed(path), n=1, cutoff=0.75)
    return near[0] if near else None


def _installed(path: str | None) -> list[str]:
    found: dict[str, None] = {}
    for folder in (path or "").split(os.pathsep):
        try:
            entries = list(os.scandir(folder)) if folder else []
        except OSError:
            continue
        found.update((entry.name, None) for entry in entries[: MAX_COMMANDS - len(found)])
    return list(found)
