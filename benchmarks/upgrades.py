"""Recorded versions of real servers (`tests/data/upgrades`), as pairs of an earlier and a later one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pml_gateway.types import JsonObject

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "upgrades"
HELD_OUT_OF = 3
"""Every third server on average is held out: its upgrades are counted, and rules are not made with them in view."""

LOOKED_AT = frozenset(
    {
        "@modelcontextprotocol/server-everything",
        "@modelcontextprotocol/server-filesystem",
        "@modelcontextprotocol/server-memory",
        "@playwright/mcp",
        "@upstash/context7-mcp",
    }
)
"""Servers whose upgrades were read before any was recorded; they cannot be held out."""


@dataclass(frozen=True, slots=True)
class Version:
    """One published version: its own name and version, and what it lists."""

    package_version: str
    name: str
    version: str
    instructions: str
    tools: tuple[JsonObject, ...]
    prompts: tuple[JsonObject, ...]
    templates: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An earlier and a later version of one server."""

    package: str
    before: Version
    after: Version

    @property
    def name(self) -> str:
        """The package and both versions."""
        return f"{self.package} {self.before.package_version} -> {self.after.package_version}"

    @property
    def is_held_out(self) -> bool:
        """Return True if the differences are never read; the hash of the package name decides."""
        return self.package not in LOOKED_AT and hashlib.sha256(self.package.encode()).digest()[0] % HELD_OUT_OF == 0


def upgrades(folder: Path = DATA) -> Iterator[Upgrade]:
    """Yield every recorded version with the one after it, by file name."""
    for path in sorted(folder.glob("*.json")):
        server = json.loads(path.read_text(encoding="utf-8"))
        for before, after in pairwise(map(_version, server["versions"])):
            yield Upgrade(server["package"], before, after)


def _version(raw: JsonObject) -> Version:
    return Version(
        package_version=raw["package_version"],
        name=raw["name"],
        version=raw["version"],
        instructions=raw["instructions"] or "",
        tools=tuple(raw["tools"]),
        prompts=tuple(raw["prompts"]),
        templates=tuple(raw["templates"]),
    )
