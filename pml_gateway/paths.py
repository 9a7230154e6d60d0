"""Paths of the gateway's files, by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.regular_files import PROJECT_NAME as PROJECT_NAME
from pml_gateway.working_directory import WorkingDirectory

CONFIG_NAME = "config.yaml"
HOME_NAME = ".pml"

PACKAGE = Path(__file__).resolve().parent


def shipped_places(*parts: str, package: Path = PACKAGE) -> tuple[Path, Path]:
    """Return where shipped files may lie: inside an installed package, or next to it in a checkout."""
    return package.joinpath("_shipped", *parts), package.parent.joinpath(*parts)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of configuration and state; reading them creates nothing."""

    home: Path
    config_file: Path
    run_dir: Path
    manifest_dir: Path
    cache_dir: Path
    results_dir: Path
    tasks_dir: Path
    logs_dir: Path
    auth_dir: Path
    installs_dir: Path
    trust_file: Path
    pins_dir: Path
    example_queries_dir: Path
    secrets_file: Path
    keys_file: Path
    key_uses_file: Path
    activity_file: Path
    approvals_file: Path
    migrations_dir: Path
    connections_file: Path
    removed_file: Path
    backups_dir: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Paths:
        """`PML_HOME` or `~/.pml`; `PML_CONFIG` names another configuration file.

        Relative ones begin in `folder`, by default the working directory.
        """
        here = WorkingDirectory(folder or Path(), environ)
        home = here.path(environ.get("PML_HOME") or Path(environ.get("HOME") or Path.home()) / HOME_NAME).absolute()
        config = environ.get("PML_CONFIG")
        return cls(
            home=home,
            config_file=here.path(config).absolute() if config else home / CONFIG_NAME,
            run_dir=home / "run",
            manifest_dir=home / "manifest",
            cache_dir=home / "cache",
            results_dir=home / "results",
            tasks_dir=home / "tasks",
            logs_dir=home / "logs",
            auth_dir=home / "auth",
            installs_dir=home / "installs",
            trust_file=home / "trust.json",
            pins_dir=home / "trust",
            example_queries_dir=home / "example-queries",
            secrets_file=home / "secrets.env",
            keys_file=home / "keys.json",
            key_uses_file=home / "key-uses.json",
            activity_file=home / "activity.db",
            approvals_file=home / "approvals.sqlite3",
            migrations_dir=home / "migrations",
            connections_file=home / "connections.json",
            removed_file=home / "removed.json",
            backups_dir=home / "backups",
        )

    def identity(self, config_file: Path | None) -> str:
        """Return the identity of a configuration in its state: its file, by default the user's."""
        return str(_absolute(config_file or self.config_file))


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()
