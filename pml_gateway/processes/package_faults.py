"""Faults of package runners, told by their output: packages that do not exist, and npx folders that are incomplete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from pml_gateway.config.commands.packages import PackageRun
from pml_gateway.errors import UpstreamUnusableError
from pml_gateway.secrets.masking import mask_text, without_defaults
from pml_gateway.text import escaped, shortened

_BROKEN = re.compile(rb"ERR_MODULE_NOT_FOUND|MODULE_NOT_FOUND|Cannot find (?:package|module)|ENOTEMPTY")
_FOLDER = re.compile(rb"[^\s'\"]*/_npx/(?P<name>[0-9a-f]{16})(?=[/'\"\s]|$)")

BELONGS = ("node_modules", "package.json", "package-lock.json", "concurrency.lock")
"""Files that npx puts into a folder; a folder with none of them is not npx's."""

LOCK_SECONDS = 60.0
"""Age in seconds at which npx itself considers its lock on a folder stale."""

BROKEN_FOLDER = "npx_folder"
"""The key of an error's details for the folder to remove."""

MAX_SHOWN = 60
"""Maximum length of a package's name in a message."""

MAX_LINE = 200
"""Maximum length of a quoted line of a package runner."""

UNKNOWN_PACKAGE = "unknown_package"
"""The state, in an error's details, of a server whose package does not exist."""

_UNKNOWN = re.compile(
    # npm, pnpm, bun, yarn; then uv and pip; then deno and docker.
    rb"E404|ETARGET|ENOVERSIONS|ERR_PNPM_FETCH_404|NO_MATCHING_VERSION|is not in (?:this|the npm) registry"
    rb"|registry\.npmjs\.org/\S+ - 404|No version matching|(?:Package|package) not found"
    rb"|was not found in the package registry|there is no version of|No matching distribution found"
    rb"|npm package '[^']*' does not exist|JSR package not found"
    rb"|manifest (?:for \S+ not found|unknown)|repository does not exist"
)
"""Output of package runners if a registry has no such package or version."""


def folder_name(run: PackageRun) -> str:
    """Return npx's name for the folder of these packages."""
    return hashlib.sha512("\n".join(sorted(run.packages, key=str.casefold)).encode()).hexdigest()[:16]


def has_whole(run: PackageRun, environ: Mapping[str, str]) -> bool:
    """Return True if npx's cache has the packages: npx records their names after the installation."""
    if run.family != "npm":
        return False
    given = next((value for name, value in environ.items() if name.lower() == "npm_config_cache" and value), None)
    cache = Path(given) if given else Path(environ.get("HOME", "")) / ".npm"
    try:
        written = json.loads((cache / "_npx" / folder_name(run) / "package.json").read_bytes())
        return bool(written["_npx"]["packages"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def broken(upstream_id: str, said: bytes, run: PackageRun) -> UpstreamUnusableError | None:
    """Return the error for a server whose stderr shows that npx's folder of its packages is incomplete, else None."""
    folder = _broken_folder(said, run)
    if folder is None:
        return None
    return UpstreamUnusableError(
        f"{upstream_id}: what npx installed for it is incomplete ({folder})",
        hint="pml doctor --fix removes that folder, after a question, and npx installs it anew",
        details={BROKEN_FOLDER: str(folder)},
    )


def _broken_folder(said: bytes, run: PackageRun) -> Path | None:
    """Return the folder of these packages that the output reports as incomplete; other folders in it are ignored."""
    if run.family != "npm" or not _BROKEN.search(said):
        return None
    wanted = folder_name(run)
    for found in _FOLDER.finditer(said):
        path = Path(os.fsdecode(found[0]).removeprefix("file://"))
        if found["name"].decode() == wanted and path.is_absolute():
            return path
    return None


def remove(folder: Path) -> None:
    """Remove one folder of npx's cache, and nothing else; it may already be gone.

    Raises:
        OSError: it is not such a folder, npx is using it, or it cannot be removed.
    """
    if not folder.exists():
        return
    is_one = folder.parent.name == "_npx" and re.fullmatch("[0-9a-f]{16}", folder.name)
    if not is_one or folder.is_symlink() or not any((folder / name).exists() for name in BELONGS):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder of npx's cache", str(folder))
    lock = folder / "concurrency.lock"
    if lock.exists() and time.time() - lock.stat().st_mtime < LOCK_SECONDS:
        raise BlockingIOError(errno.EBUSY, "npx works in it right now", str(folder))
    shutil.rmtree(folder)


def unknown_package(upstream_id: str, said: bytes, run: PackageRun) -> UpstreamUnusableError | None:
    """Return the error for a package that does not exist, if the output of a runner shows that."""
    if not _UNKNOWN.search(said):
        return None
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    # The last line that names the missing package: the first ones are codes.
    line = next((line for line in reversed(lines) if _UNKNOWN.search(line.encode())), lines[-1])
    last_words = shortened(escaped(mask_text(line)), MAX_LINE)
    return UpstreamUnusableError(
        f"{upstream_id}: {shown(run)} does not exist, says {run.runner}: {last_words}",
        hint=f"correct the name or version in servers.{upstream_id}.args, or log in to its registry",
        details={"executed": "no", "state": UNKNOWN_PACKAGE},
    )


def shown(run: PackageRun) -> str:
    """Return runner and package for messages, without secrets."""
    return f"{run.runner} {shortened(escaped(mask_text(without_defaults(run.packages[0]))), MAX_SHOWN)}"
