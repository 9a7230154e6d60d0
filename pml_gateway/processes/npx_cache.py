"""The folders in which npx keeps installed packages: detecting complete ones and ones broken by an interruption."""

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

_BROKEN = re.compile(rb"ERR_MODULE_NOT_FOUND|MODULE_NOT_FOUND|Cannot find (?:package|module)|ENOTEMPTY")
_FOLDER = re.compile(rb"[^\s'\"]*/_npx/(?P<name>[0-9a-f]{16})(?=[/'\"\s]|$)")

BELONGS = ("node_modules", "package.json", "package-lock.json", "concurrency.lock")
"""Files that npx puts into a folder; a folder with none of them is not npx's."""

LOCK_SECONDS = 60.0
"""Age in seconds at which npx itself considers its lock on a folder stale."""

BROKEN_FOLDER = "npx_folder"
"""The key of an error's details for the folder to remove."""


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
