"""A change of a configuration file: made under a lock, shown as a diff, backed up, written whole or not at all."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pml_gateway.config.document import read_bytes
from pml_gateway.config.files import OWNER_ONLY, locked, write_atomically
from pml_gateway.config.redaction import masked_yaml
from pml_gateway.errors import ConfigurationError

KEPT_BACKUPS = 10
"""How many backups of a file stay; `pml disconnect` and `pml migrate back` keep what they need elsewhere."""

_BACKUP = re.compile(r"\.bak-(?P<time>\d{8}-\d{6})(?:-(?P<number>\d+))?\Z")


@dataclass(frozen=True, slots=True)
class FileEdit:
    """What changed in a file, and where the old text is kept.

    `backup` is None where there was nothing to keep, or nothing was written.
    """

    path: Path
    before: str
    after: str
    backup: Path | None

    @property
    def has_changed(self) -> bool:
        """Whether the texts differ."""
        return self.before != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff, with credentials masked."""
        name = str(self.path)
        before, after = (masked_yaml(text, self.path).splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def edit_file(path: Path, change: Callable[[str], str], *, dry_run: bool = False) -> FileEdit:
    """Apply `change` to the text of `path`, which is created where it is missing.

    Raises:
        ConfigurationError: the file cannot be read or written, or `change` refuses it; nothing is written then.
    """
    target = path.resolve()
    if dry_run:
        before = _text(target)
        return FileEdit(path, before, change(before), None)
    try:
        with locked(target):
            before = _text(target)
            after = change(before)
            if before == after:
                return FileEdit(path, before, after, None)
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else OWNER_ONLY
            backup = _back_up(target, path, mode) if target.exists() else None
            write_atomically(target, after, mode)
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be written: {exc.strerror}", hint="check its owner and mode") from exc
    return FileEdit(path, before, after, backup)


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {exc.start})", hint="save it as UTF-8") from exc


def _back_up(target: Path, path: Path, mode: int) -> Path:
    """Copy `target` to a new file beside `path`, named after the time; never over an earlier backup."""
    content = target.read_bytes()
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    stem = f"{path.name}.bak-{now}"
    # A number is not used again within its second, or the order of the names would not be that of the backups.
    attempt = max((number + 1 for time, number, _ in _backups(path) if time == now), default=0)
    while True:
        backup = path.with_name(stem if not attempt else f"{stem}-{attempt}")
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            attempt += 1
            continue
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        backup.chmod(mode)
        _forget_old(path)
        return backup


def _backups(path: Path) -> list[tuple[str, int, Path]]:
    """The backups of `path`, oldest first: the time, the number within its second, the file."""
    found = []
    for candidate in path.parent.iterdir():
        name = _BACKUP.fullmatch(candidate.name.removeprefix(path.name))
        if name is not None and candidate.name.startswith(path.name):
            found.append((name["time"], int(name["number"] or 0), candidate))
    return sorted(found)


def _forget_old(path: Path) -> None:
    for *_, old in _backups(path)[:-KEPT_BACKUPS]:
        # One that cannot be removed is no reason to refuse the edit.
        with suppress(OSError):
            old.unlink()
