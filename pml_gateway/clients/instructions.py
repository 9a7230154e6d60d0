"""The gateway's lines in a project's file for models, such as AGENTS.md: a marked block, put in and taken out.

Nothing outside of the block changes, and taking it out leaves every byte as it was before.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.connect import ConnectedFiles
from pml_gateway.clients.jsonc import BOM, TextSpan
from pml_gateway.clients.model import KnownClient
from pml_gateway.clients.show import text_diff
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import locked, write_atomically
from pml_gateway.regular_files import LinkOutsideFolderError, RefusedFileError, read_regular

MAX_BYTES = 1_000_000
"""Maximum bytes of a file for models: clients send all of it with every conversation."""

MAX_BYTES_TO_UNDO = 16 * MAX_BYTES
"""Maximum size of a file that lines are taken out of, as it may have grown since."""

BEGIN = "<!-- pml connect: begin; `pml disconnect` removes this block -->"
END = "<!-- pml connect: end -->"

_MARK = re.compile(r"^[ \t]*<!-- pml connect: (begin|end)\b[^\r\n]*?-->[ \t]*(?=\r?$)", re.MULTILINE)
_LINE_END = re.compile(r"\r?\n\Z")
_BLANK_LINE = re.compile(r"(?:\r?\n){2}\Z")


def instructions_file(client: KnownClient, folders: Iterable[Path]) -> Path | None:
    """Return the existing file that a client reads; if it knows several, the one that it prefers.

    Args:
        client: the client.
        folders: the working directory and those around it, closest first.
    """
    folders = list(dict.fromkeys(folders))
    files = (folder / name for name in client.instructions for folder in folders)
    return next((file for file in files if os.path.lexists(file)), None)


@dataclass(frozen=True, slots=True)
class InstructionsEdit:
    """A change of a file for models: its path, the file that a link leads to, and the text before and after."""

    file: Path
    target: Path
    before: str
    after: str

    @property
    def has_changed(self) -> bool:
        """Return True if there is something to write."""
        return self.after != self.before

    @property
    def diff(self) -> str:
        """Return the change as a unified diff, with credentials masked."""
        return text_diff(str(self.file), self.before.removeprefix(BOM), self.after.removeprefix(BOM))

    def write(self, connections: ConnectedFiles, clients: tuple[str, ...]) -> None:
        """Write the file completely or not at all, and record the clients that need the lines from now on.

        Raises:
            ConfigurationError: the file changed since it was read, or cannot be written.
        """
        try:
            with locked(connections.path):
                before = connections.instructions().get(self.target, ())
                if self._is_another():
                    raise ConfigurationError(
                        f"{self.file} was changed by another program just now", hint="run it again"
                    )
                # Recorded first: without the record, an interrupted run could not be undone.
                connections.put_instructions(self.target, tuple(dict.fromkeys((*before, *clients))))
                if self.has_changed:
                    try:
                        write_atomically(self.target, self.after, stat.S_IMODE(self.target.stat().st_mode))
                    except OSError:
                        connections.put_instructions(self.target, before)
                        raise
                connections.put_instructions(self.target, clients)
        except OSError as exc:
            raise ConfigurationError(
                f"{self.file} cannot be written: {exc.strerror}", hint="check its owner and mode"
            ) from exc

    def _is_another(self) -> bool:
        """Return True if another file is in this one's place, or has another content."""
        if any(os.path.realpath(path) != os.fspath(self.target) for path in (self.file, self.target)):
            return True
        before = self.before.encode()
        try:
            return read_regular(self.target, len(before) + 1, is_own=True, within=self.target.parent) != before
        except RefusedFileError:
            return True


def added(file: Path, project: Path, lines: str) -> InstructionsEdit:
    """Plan to put the lines into a file, in the place of those that an earlier version has put there.

    Args:
        file: an existing file.
        project: the folder in which it has to lie after links are followed.
        lines: Markdown.

    Raises:
        ConfigurationError: the file cannot be edited as it is.
    """
    target, text = _read(file, project, MAX_BYTES)
    head = BOM if text.startswith(BOM) else ""
    text = text.removeprefix(BOM)
    end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    block = end.join((BEGIN, *lines.strip().splitlines(), END))
    there = _block(file, text)
    if there is not None:
        after = text[: there.start] + block + text[there.end :]
    else:
        # The last line ends as the last line of the file did, so that taking the block out leaves every byte.
        tail = found[0] if (found := _LINE_END.search(text)) else ""
        body = text.removesuffix(tail)
        # Behind a bare carriage return, a line feed would make one line end of both.
        gap = ("\r\n" if body.endswith("\r") else end) * 2 if body else ""
        after = f"{body}{gap}{block}{tail}"
    return InstructionsEdit(file, target, head + text, head + after)


def removed(file: Path, project: Path) -> InstructionsEdit:
    """Plan to take the lines out of a file; a file without them stays as it is.

    Raises:
        ConfigurationError: the file cannot be edited as it is.
    """
    target, text = _read(file, project, MAX_BYTES_TO_UNDO)
    head = BOM if text.startswith(BOM) else ""
    text = text.removeprefix(BOM)
    there = _block(file, text)
    if there is None:
        return InstructionsEdit(file, target, head + text, head + text)
    before = _BLANK_LINE.sub("", text[: there.start])
    return InstructionsEdit(file, target, head + text, f"{head}{before}{text[there.end :]}")


def _read(file: Path, project: Path, limit: int) -> tuple[Path, str]:
    try:
        content = read_regular(file, limit + 1, is_own=True, within=project)
        if len(content) > limit:
            raise ConfigurationError(
                f"{file} is larger than {limit:,} bytes", hint="add or remove the lines of `pml docs agents` by hand"
            )
        target = Path(os.path.realpath(file))
        if not target.stat().st_mode & stat.S_IWUSR or not os.access(target, os.W_OK):
            raise ConfigurationError(f"{file} is read-only", hint="make it writable, or leave it as it is")
        return target, content.decode()
    except LinkOutsideFolderError:
        raise ConfigurationError(
            f"{file} is a link to {os.path.realpath(file)}, outside of {project}",
            hint="add the lines of `pml docs agents` there by hand",
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not valid UTF-8", hint="save it as UTF-8, or leave it as it is") from None
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be read: {exc.strerror}", hint="check its owner and mode") from exc


def _block(file: Path, text: str) -> TextSpan | None:
    """Return the span of the block; None if there is none.

    Raises:
        ConfigurationError: a mark of it is missing or there twice.
    """
    marks = list(_MARK.finditer(text))
    match [mark[1] for mark in marks]:
        case []:
            return None
        case ["begin", "end"]:
            return TextSpan(marks[0].start(), marks[1].end())
        case _:
            lines = ", ".join(f"line {text.count(chr(10), 0, mark.start()) + 1}: {mark[1]}" for mark in marks[:4])
            raise ConfigurationError(
                f"{file} must have exactly one begin and one end marker of `pml connect` ({lines})",
                hint=f"put `{END}` where the block ends, or take the other marks out; nothing was written",
            )
