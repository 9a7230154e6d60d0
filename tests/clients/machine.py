"""A machine of a test's own: a home, a project, clients' files, on any system."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_gateway.clients.discover import ClientFile, client_files, known_client, read_place
from pml_gateway.clients.importing import ImportedServer, ImportPlan, plan_import
from pml_gateway.clients.known import CLIENTS
from pml_gateway.clients.model import Scope, System
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.settings import Settings
from pml_gateway.paths import Paths


@dataclass(slots=True)
class Machine:
    """Where a test writes the files of clients."""

    root: Path
    system: System = System.LINUX
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "home").mkdir()
        (self.root / "project" / ".git").mkdir(parents=True)
        self.environ = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"} | self.environ

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def paths(self) -> Paths:
        return Paths.from_environ(self.environ)

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings.here(self.project, self.environ, self.system)

    def write(self, path: str, content: str | Mapping[str, Any]) -> Path:
        """Write a file below the root; a mapping becomes JSON."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        file.write_bytes(text.encode())
        return file

    def file(self, client: str, scope: Scope = Scope.USER) -> ClientFile:
        """The file of a client as it is now."""
        known = known_client(client)
        return read_place(known, next(place for place in known.places if place.scope is scope), self.surroundings)

    def plan(self, servers: Mapping[str, Any] | None = None) -> ImportPlan:
        """What importing everything on this machine would do."""
        settings = Settings.model_validate({"servers": dict(servers or {})})
        return plan_import(client_files(self.surroundings), settings, self.surroundings)


def imported(plan: ImportPlan, entry: str) -> ImportedServer:
    return next(server for server in plan.servers if server.entry_name == entry)


ALL_PLACES = [(client.name, place.scope) for client in CLIENTS for place in client.places if not place.read_only]
