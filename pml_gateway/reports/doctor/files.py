"""Doctor: who can read and write the gateway's files, and the versions of what is installed."""

from __future__ import annotations

import platform
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from pml_gateway import __version__
from pml_gateway.config.document import is_there
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity
from pml_gateway.errors import SecretError
from pml_gateway.files import OWNER_ONLY, PRIVATE_FOLDER
from pml_gateway.paths import Paths
from pml_gateway.reports.doctor.cases import MachineCase
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import references, resolve_in
from pml_gateway.storage.places import unwritable_places
from pml_gateway.working_directory import WorkingDirectory

HOME = "the gateway's folder"
MAX_FILES = 2_000
"""Logs, logins and results that are looked at; more than a home has in practice."""

DISTRIBUTION = "pml-gateway"


def files(case: MachineCase) -> Iterator[Finding]:
    """Check the permissions of files that only the owner should read, and that the folder can be written."""
    home = case.paths.home
    lacking = unwritable_places(case.paths)
    for lack in lacking:
        yield Finding(
            Area.FILES,
            Severity.WARNING,
            str(lack.path),
            f"cannot be written ({lack.reason}), and the gateway serves without",
            f"chown -R $(id -un) {lack.path}, or make room, or set PML_HOME to a folder of your own",
            lack.consequences,
        )
    if not is_there(home):
        if not lacking:
            yield Finding(Area.FILES, Severity.NOTE, str(home), "does not exist yet", "pml init makes it")
        return
    if sys.platform == "win32":
        # Modes say nothing there.
        return
    found = [
        *_open_to_others(case.paths, Path(case.identity)),
        _results_folder(case),
        *(_secret_file(path, written) for path, written in _referenced_files(case)),
    ]
    findings = [finding for finding in found if finding is not None]
    yield from findings
    if not findings:
        yield Finding(Area.FILES, Severity.OK, str(home), "only you can read what holds secrets")


def _open_to_others(paths: Paths, config_file: Path) -> Iterator[Finding | None]:
    yield _closed(paths.home, PRIVATE_FOLDER, Severity.WARNING, HOME)
    yield _closed(config_file, OWNER_ONLY, Severity.WARNING, "the configuration")
    for backup in sorted(config_file.parent.glob(f"{config_file.name}.bak-*")):
        yield _closed(backup, OWNER_ONLY, Severity.WARNING, "a backup of the configuration")
    yield _closed(paths.secrets_file, OWNER_ONLY, Severity.ERROR, "the file of secrets")
    for folder, severity, what in (
        (paths.auth_dir, Severity.ERROR, "a stored login"),
        (paths.backups_dir, Severity.WARNING, "a backup of a client's file"),
        (paths.results_dir, Severity.WARNING, "a stored result"),
        (paths.logs_dir, Severity.WARNING, "a server's log"),
        (paths.run_dir, Severity.WARNING, "a socket of a gateway"),
    ):
        if is_there(folder):
            for path in sorted(folder.rglob("*"))[:MAX_FILES]:
                yield _closed(path, PRIVATE_FOLDER if path.is_dir() else OWNER_ONLY, severity, what)


def _closed(path: Path, wanted: int, severity: Severity, what: str) -> Finding | None:
    """Return a finding where others than the owner have rights on `path`; repaired by taking them away."""
    try:
        found = path.lstat()
    except OSError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or not mode & 0o077:
        return None
    # A folder that only its owner can enter hides whatever is in it.
    if what != HOME and _is_private(path.parent):
        return None
    return Finding(
        Area.FILES,
        severity,
        str(path),
        f"{what} is open to other users (mode {mode:03o})",
        f"chmod {wanted:o} {path}",
        repair=lambda: path.chmod(mode & wanted | (wanted & 0o600)),
    )


def _results_folder(case: SettingsCase) -> Finding | None:
    """Return a finding where others can look into the folder that `storage.results` names."""
    store = case.settings.storage.results
    if not store.startswith("disk:"):
        return None
    here = WorkingDirectory.here(case.environ)
    try:
        folder = here.path(resolve_in(store.removeprefix("disk:"), here))
    except SecretError:
        return None
    return _closed(folder, PRIVATE_FOLDER, Severity.WARNING, "the folder of stored results")


def _is_private(folder: Path) -> bool:
    try:
        return not stat.S_IMODE(folder.stat().st_mode) & 0o077
    except OSError:
        return False


def _referenced_files(case: SettingsCase) -> Iterator[tuple[Path, str]]:
    """Files that `${file:PATH}` and `env_file` name, and how their paths are written."""
    texts = [client.key for client in case.settings.clients.values() if client.key is not None]
    for definition in case.settings.servers.values():
        texts += [definition.url or "", *definition.args, *definition.env.values(), *definition.headers.values()]
        if definition.env_file:
            try:
                here = WorkingDirectory.here(case.environ)
                folder = here.path(resolve_in(definition.cwd or "", here))
                written = without_defaults(str(Path(definition.cwd or "") / definition.env_file))
                yield replace(here, folder=folder).path(resolve_in(definition.env_file, here)), written
            except SecretError:
                continue
    for name in dict.fromkeys(item.name for text in texts for item in references(text) if item.kind == "file"):
        yield Path(name).expanduser(), name


def _secret_file(path: Path, written: str) -> Finding | None:
    """Return a finding if all users can read the file; other modes are the operator's choice."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    if not mode & 0o007:
        return None
    return Finding(
        Area.FILES,
        Severity.WARNING,
        written,
        f"a file of secrets is open to all users (mode {mode:03o})",
        f"chmod o= {written}",
    )


def versions(_: SettingsCase, distribution: str = DISTRIBUTION) -> Iterator[Finding]:
    """Yield this version, Python's, and packages that are missing or of the wrong version."""
    what = f"pml-gateway {__version__}, Python {platform.python_version()}, {platform.system()}"
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        yield Finding(Area.VERSIONS, Severity.OK, "", f"{what}; run from a checkout")
        return
    problems = [problem for text in required for problem in _problems(Requirement(text))]
    yield from problems
    if not problems:
        yield Finding(Area.VERSIONS, Severity.OK, "", f"{what}, and every package it needs")


def _problems(requirement: Requirement) -> Iterator[Finding]:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return
    fix = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        yield Finding(Area.VERSIONS, Severity.ERROR, requirement.name, "is not installed", fix)
        return
    if not requirement.specifier.contains(version, prereleases=True):
        what = f"is version {version}, and {requirement.specifier} is needed"
        yield Finding(Area.VERSIONS, Severity.ERROR, requirement.name, what, fix)
