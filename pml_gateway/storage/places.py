"""The gateway's own folder: kept from other users, and what the gateway does without where it cannot be written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.errors import SharedStateError
from pml_gateway.files import PRIVATE_FOLDER
from pml_gateway.log import get_logger
from pml_gateway.paths import HOME_NAME, Paths

logger = get_logger(__name__)


MAX_SET_ASIDE = 5
"""Damaged files kept of one file: the first ones, which held most, and the last."""


def free_aside(path: Path) -> Path:
    """Return a path for a damaged file, `path` or one with a number; the last of them is used again."""
    paths = [path, *(path.with_name(f"{path.name}-{number}") for number in range(2, MAX_SET_ASIDE + 1))]
    return next((each for each in paths if not os.path.lexists(each)), paths[-1])


@dataclass(frozen=True, slots=True)
class Place:
    """Something that is kept in the folder, and what it means where that cannot be written."""

    name: str
    consequence: str


LOGS = Place("logs", "what servers write to stderr is not kept, and pml upstreams logs does not show it")
MANIFEST = Place("manifest", "every start asks all servers for their tools, and learned output shapes are forgotten")
RUN = Place("run", "each client has a gateway of its own, which pml status, pml refresh and pml upstreams miss")
CACHE = Place("cache", "the vectors of all tools, and how servers behave, are found out anew at every start")
RESULTS = Place(
    "results", "stored results are kept in memory, also with storage.results: disk, and end with this gateway"
)
TASKS = Place("tasks", "tasks are unknown after a restart, instead of interrupted or done")
AUTH = Place("auth", "a login that is renewed ends with this gateway, and has to be repeated after it")
TRUST = Place("trust", "what was accepted and held back of servers' definitions is forgotten when this gateway ends")
INSTALLS = Place(
    "installs",
    "first starts of npx, uvx, docker run and the like have no more time than others, and may be ended half-way",
)
EXAMPLES = Place(
    "example-queries",
    "what pml example-queries import and pml enrich write is not kept, and search knows shipped examples only",
)
ACTIVITY = Place("activity.db", "calls are not recorded, and pml activity, pml stats and pml migrate do not know them")
PLACES = (LOGS, MANIFEST, RUN, CACHE, RESULTS, TASKS, AUTH, TRUST, INSTALLS, EXAMPLES, ACTIVITY)


@dataclass(frozen=True, slots=True)
class UnwritablePath:
    """Places that cannot be written, and why; several if a whole folder cannot."""

    path: Path
    reason: str
    places: tuple[Place, ...]

    @property
    def consequences(self) -> tuple[str, ...]:
        """Consequence for the gateway."""
        return tuple(place.consequence for place in self.places)


_TOLD: set[tuple[str, Path]] = set()
"""Warnings given in this process, by place and folder: a full disk fails at every write."""


def warn_unwritable(place: Place, path: Path, error: Exception) -> None:
    """Say once that nothing can be written at `path`, and what that means; the gateway goes on."""
    if not any(name == place.name and path.is_relative_to(told) for name, told in _TOLD):
        _TOLD.add((place.name, path))
        if isinstance(error, SharedStateError):
            logger.warning("%s; until it answers, %s", error.message, place.consequence)
        else:
            logger.warning("%s cannot be written (%s): %s", path, _reason(error), place.consequence)


def warn_unwritable_places(paths: Paths) -> None:
    """Say at the start what cannot be written, all in one line where that is the whole folder."""
    for lack in unwritable_places(paths):
        _TOLD.update((place.name, paths.home / place.name) for place in lack.places)
        logger.warning(
            "%s cannot be written (%s); the gateway serves all the same, but: %s; set PML_HOME to a folder of your own",
            lack.path,
            lack.reason,
            "; ".join(lack.consequences),
        )


def unwritable_places(paths: Paths) -> list[UnwritablePath]:
    """Return the places that cannot be written now; tests each existing folder with a file."""
    reason = obstacle(paths.home)
    if reason:
        return [UnwritablePath(paths.home, reason, PLACES)]
    tried = ((place, paths.home / place.name) for place in PLACES)
    return [
        UnwritablePath(path, reason, (place,)) for place, path in tried if path.exists() and (reason := obstacle(path))
    ]


def obstacle(path: Path) -> str:
    """Return why a file or folder (or the parent of a missing one) cannot be written; "" if it can."""
    try:
        if path.is_file():  # not opened: closing it would drop the locks that SQLite has on it in this process (POSIX)
            return "" if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        folder = next(each for each in (path, *path.parents) if each.exists())
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """Return the reason of an error, or of the fault below it."""
    fault = error.__cause__ or error
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault) or type(fault).__name__


def close_to_others(home: Path) -> int | None:
    """Take other users' rights on `~/.pml` away; the mode before, where there were any.

    A folder of another name may be meant to be shared, and is left to `pml doctor`.
    """
    try:
        found = home.lstat()
        mode = stat.S_IMODE(found.st_mode)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and home.name == HOME_NAME
        if not is_ours or not mode & 0o077:
            return None
        home.chmod(mode & PRIVATE_FOLDER)
    except OSError:
        return None
    return mode
