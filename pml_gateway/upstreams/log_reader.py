"""The log of an upstream becomes lines that may be shown: the last ones, and without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pml_gateway.config.masking import MASK, is_secret_name, mask_text
from pml_gateway.config.secrets import references, resolve
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import SecretError
from pml_gateway.upstreams.child_log import MAX_LOG_BYTES, old_log

MIN_SECRET = 4
"""Characters of the shortest text that is masked wherever it stands; shorter ones would mask half of the log."""

MAX_LINE = 4000


class LogReader:
    """Reads one upstream's log from its end, and on as it grows."""

    def __init__(self, path: Path, definition: UpstreamDefinition) -> None:
        self._path = path
        self._secrets = secrets_of(definition)
        self._at = 0
        self._inode = 0
        self._rest = b""

    def last(self, count: int) -> list[str]:
        """The last `count` lines of both files."""
        old = _content(old_log(self._path)) if self._path.exists() else b""
        self._inode = self._path.stat().st_ino if self._path.exists() else 0
        content = _content(self._path)
        self._at = len(content)
        whole = (old + content).splitlines()
        return [self._shown(line) for line in whole[-count:]] if count else []

    def more(self) -> Iterator[str]:
        """The lines written since; after a rotation, those of both files."""
        if not self._path.exists():
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
        yield from map(self._shown, lines)

    def _shown(self, line: bytes) -> str:
        text = line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return mask_text(text)


def secrets_of(definition: UpstreamDefinition) -> list[str]:
    """What this upstream was given that nobody should read in a log, the longest first."""
    texts = [definition.url or "", definition.command or "", *definition.args]
    texts += [*definition.env.values(), *definition.headers.values()]
    found = {value for text in texts for value in _referenced(text)}
    named = [value for name, value in definition.env.items() if is_secret_name(name)]
    for text in [*named, *definition.headers.values()]:
        found.update(_words(text))
    return sorted((secret for secret in found if len(secret) >= MIN_SECRET), key=len, reverse=True)


def _referenced(text: str) -> Iterator[str]:
    for reference in references(text):
        try:
            yield from resolve(reference.label).splitlines()
        except SecretError:
            yield reference.default or ""


def _words(text: str) -> set[str]:
    """A value and, of `Bearer x` and the like, its last part; references are resolved."""
    try:
        value = resolve(text)
    except SecretError:
        return set()
    return {value, value.rpartition(" ")[2]}


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(2 * MAX_LOG_BYTES)
    except FileNotFoundError:
        return b""
