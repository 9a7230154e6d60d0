"""A home, a project and an environment of their own, for tests of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_gateway.config.load import LoadedSettings, load_settings
from pml_gateway.config.trust import TrustStore
from pml_gateway.paths import Paths


@dataclass(slots=True)
class Workspace:
    """Where a test writes its files."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir()
        self.project.mkdir()
        self.environ |= {"PML_HOME": str(self.home), "HOME": str(self.root)}

    @property
    def home(self) -> Path:
        """PML_HOME."""
        return self.root / "pml-home"

    @property
    def project(self) -> Path:
        """The working directory of the gateway."""
        return self.root / "project"

    @property
    def config_file(self) -> Path:
        """The user's file."""
        return self.home / "config.yaml"

    @property
    def project_file(self) -> Path:
        """The project's file."""
        return self.project / ".pml.yaml"

    @property
    def trust(self) -> TrustStore:
        """The approvals of this home."""
        return TrustStore(Paths.from_environ(self.environ).trust_file)

    def user(self, text: str) -> None:
        """Write the user's file."""
        self.config_file.write_text(text)

    def in_project(self, text: str, *, is_trusted: bool = False) -> None:
        """Write the project's file, and approve it if asked."""
        self.project_file.write_text(text)
        if is_trusted:
            self.trust.trust(self.project_file, text.encode())

    def load(self, environ: Mapping[str, str] | None = None, **arguments: Any) -> LoadedSettings:
        """Load with this home, this project and these further variables."""
        return load_settings(project_dir=self.project, environ=self.environ | dict(environ or {}), **arguments)
