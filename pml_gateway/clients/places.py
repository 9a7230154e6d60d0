"""Locations of clients' files, by system, environment and working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.model import FileLocation, System
from pml_gateway.regular_files import git_root


def current_system() -> System:
    """Return the system of this process; every other Unix counts as Linux."""
    match sys.platform:
        case "darwin":
            return System.MACOS
        case "win32":
            return System.WINDOWS
        case _:
            return System.LINUX


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment that determines file locations: the user's, and the project around the working directory."""

    system: System
    environ: Mapping[str, str]
    project: Path

    @classmethod
    def here(
        cls, directory: Path, environ: Mapping[str, str] = os.environ, system: System | None = None
    ) -> Surroundings:
        """Return the surroundings of `directory`; the project is its git root, or `directory` itself outside git."""
        start = directory.absolute()
        root = Path(git_root(start) or start)
        return cls(system or current_system(), environ, root)

    @property
    def home(self) -> Path:
        """Return the user's home folder."""
        names = ("USERPROFILE", "HOME") if self.system is System.WINDOWS else ("HOME",)
        found = next((self.environ[name] for name in names if self.environ.get(name)), None)
        return Path(found) if found else Path.home()

    def path(self, place: FileLocation) -> Path:
        """Return the path of a location's file."""
        root, _, rest = place.path.partition("/")
        return self._root(root) / rest

    def block(self, place: FileLocation) -> tuple[str, ...]:
        """Return the keys that lead to the servers in the file of `place`."""
        return tuple(str(self.project) if step == "{project}" else step for step in place.block)

    def _root(self, root: str) -> Path:
        match root:
            case "{home}":
                return self.home
            case "{project}":
                return self.project
            case "{apps}":
                if self.system is System.MACOS:
                    return self.home / "Library" / "Application Support"
                return self._roaming() if self.system is System.WINDOWS else self._xdg()
            case "{xdg}":
                if self.system is System.MACOS:
                    return self.home / ".config"
                return self._roaming() if self.system is System.WINDOWS else self._xdg()
            case "{claude}":
                return self._given("CLAUDE_CONFIG_DIR", self.home)
            case "{codex}":
                return self._given("CODEX_HOME", self.home / ".codex")
            case _:
                raise ValueError(f"no such root: {root}")

    def _roaming(self) -> Path:
        return self._given("APPDATA", self.home / "AppData" / "Roaming")

    def _xdg(self) -> Path:
        return self._given("XDG_CONFIG_HOME", self.home / ".config")

    def _given(self, variable: str, default: Path) -> Path:
        value = self.environ.get(variable)
        return Path(value).expanduser() if value else default
