"""A child's stderr: kept in a file of bounded size, and shown without its secrets."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pml_gateway.config.document import is_there
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import SecretError
from pml_gateway.files import OWNER_ONLY, make_private
from pml_gateway.secrets.env_file import read_env_file
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import SecretForms
from pml_gateway.secrets.masking import mask_text
from pml_gateway.secrets.names import is_secret_name
from pml_gateway.secrets.references import references, resolve, resolve_in
from pml_gateway.storage.places import LOGS, warn_unwritable
from pml_gateway.telemetry.log_file import old_log
from pml_gateway.working_directory import WorkingDirectory

MAX_LOG_BYTES = 1024 * 1024
"""Size at which a log is rotated: between one and two times this size is kept."""

MAX_LAST = 8192
"""Maximum bytes from the end of a log that may show why a child ended."""

MIN_SECRET = 4
"""Minimum length of a text that is masked everywhere; shorter ones would mask half of the log."""

MAX_LINE = 4000


class ChildLog:
    """One log, which other gateways may also write and rotate."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def write(self, content: bytes) -> None:
        """Append to the log; failures are ignored, since no child may fail because of its log."""
        try:
            for start in range(0, len(content), MAX_LOG_BYTES):
                part = content[start : start + MAX_LOG_BYTES]
                self._make_room(len(part))
                os.write(self._descriptor, part)
        except OSError as error:
            warn_unwritable(LOGS, self._path.parent, error)

    def note(self, text: str) -> None:
        """Append a line from the gateway."""
        self.write(f"[pml] {text}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _make_room(self, size: int) -> None:
        self._follow()
        if os.fstat(self._descriptor).st_size + size <= MAX_LOG_BYTES:
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # After waiting for the lock, the file may already have been rotated.
        if self._is_current():
            self._path.replace(old_log(self._path))
        self._follow()

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def _follow(self) -> None:
        if not self._is_current():
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor = descriptor


@contextmanager
def open_child_log(path: Path) -> Iterator[ChildLog]:
    """Open the log at `path`, creating it if needed; readable by its owner only, since servers write secrets.

    If it cannot be created, output is discarded until it can.
    """
    try:
        make_private(path.parent)
        log = ChildLog(path, _open(path))
    except OSError as error:
        warn_unwritable(LOGS, path.parent, error)
        log = ChildLog(path, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    try:
        yield log
    finally:
        log.close()


def log_path(logs_dir: Path, upstream_id: str) -> Path:
    """Return the path of an upstream's log."""
    name = "".join(character if character.isalnum() or character in "-_." else "_" for character in upstream_id)
    return logs_dir / f"{name}.log"


def log_size(path: Path) -> int:
    """Return the current size of the log at `path`."""
    return path.stat().st_size if is_there(path) else 0


def last_words(path: Path, since: int) -> bytes:
    """Return the end of what was written after a log had `since` bytes; all of it if the log was rotated."""
    content = _content(path)
    return content[since if len(content) >= since else 0 :][-MAX_LAST:]


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, OWNER_ONLY)


class LogReader:
    """A reader of one upstream's log, from its end and as it grows."""

    def __init__(self, path: Path, definition: UpstreamDefinition) -> None:
        self._path = path
        self._secrets = SecretForms.of(secrets_of(definition), MIN_SECRET)
        self._before = b""
        self._at = 0
        self._inode = 0
        self._rest = b""

    def last(self, count: int) -> list[str]:
        """Return the last `count` lines of both files."""
        old = _content(old_log(self._path)) if is_there(self._path) else b""
        self._inode = self._path.stat().st_ino if is_there(self._path) else 0
        content = _content(self._path)
        self._at = len(content)
        whole = (old + content).splitlines()
        return list(self._shown(whole[-count:])) if count else []

    def more(self) -> Iterator[str]:
        """Yield the lines written since the last read; after a rotation, those of both files."""
        if not is_there(self._path):
            return
        found = self._path.stat()
        if found.st_ino != self._inode:
            previous = old_log(self._path)
            if self._inode and previous.exists() and previous.stat().st_ino == self._inode:
                self._rest += _content(previous)[self._at :]
            self._inode, self._at = found.st_ino, 0
        content = _content(self._path)[self._at :]
        self._at += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        yield from self._shown(lines)

    def _shown(self, lines: Sequence[bytes]) -> Iterator[str]:
        """Mask lines together with the previous one, since a secret may span lines."""
        if not lines:
            return
        # A truncated secret is no longer recognized.
        bound = MAX_LINE + 2 * self._secrets.longest
        whole = (line[:bound].decode("utf-8", "replace").rstrip("\r") for line in (self._before, *lines))
        self._before = lines[-1]
        for line in self._secrets.masked("\n".join(whole), MASK).split("\n")[1:]:
            yield mask_text(line[:MAX_LINE])


def secrets_of(definition: UpstreamDefinition) -> list[str]:
    """Return the secrets of an upstream's definition that a log must not show, the longest first."""
    texts = [definition.url or "", definition.command or "", definition.cwd or "", definition.env_file or ""]
    texts += definition.args
    texts += [*definition.env.values(), *definition.headers.values()]
    found = {value for text in texts for value in _referenced(text)}
    named = [value for name, value in definition.env.items() if is_secret_name(name)]
    for text in [*named, *definition.headers.values()]:
        found.update(_words(text))
    found.update(value for name, value in _of_env_file(definition).items() if is_secret_name(name))
    return sorted((secret for secret in found if len(secret) >= MIN_SECRET), key=len, reverse=True)


def _of_env_file(definition: UpstreamDefinition) -> dict[str, str]:
    """Return the variables from the server's env file, if it can be read now."""
    if not definition.env_file:
        return {}
    try:
        here = WorkingDirectory.here()
        folder = here.path(resolve_in(definition.cwd or "", here))
        return read_env_file(replace(here, folder=folder).path(resolve_in(definition.env_file, here)))
    except SecretError:
        return {}


def _referenced(text: str) -> Iterator[str]:
    for reference in references(text):
        try:
            yield from resolve(reference.label).splitlines()
        except SecretError:
            yield reference.default or ""


def _words(text: str) -> set[str]:
    """Return a value and, for `Bearer x` and the like, its last part; references are resolved."""
    try:
        value = resolve_in(text, WorkingDirectory.here())
    except SecretError:
        return set()
    return {value, value.rpartition(" ")[2]}


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(2 * MAX_LOG_BYTES)
    except OSError:
        return b""
