"""What is started at login: the command of this installation, and the variables that it needs."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.own import own_places, pml_command
from pml_gateway.errors import ConfigurationError

MARK = "Written by pml service install"
"""Stands in every file of ours; one without it is somebody else's, and is left alone."""

STOP_SECONDS = 75
"""What the end may take: `pml down` lets running calls go on for 60 seconds, and servers need a few to end."""

RETRY_SECONDS = 5

_NO_TEXT = ("Cc", "Cs")


@dataclass(frozen=True, slots=True)
class Program:
    """A command, and the variables that it is started with beside those of every login."""

    command: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def is_there(self) -> bool:
        """Whether what it starts still exists."""
        return Path(self.command[0]).is_file()

    def options_beside(self, own: Program) -> tuple[str, ...] | None:
        """What it is told beside `own`, the same installation, home and configuration; None where it is another one.

        PATH differs from shell to shell, and is not compared.
        """
        length = len(own.command)
        is_same = self.command[:length] == own.command and own_places(self.environ) == own_places(own.environ)
        return self.command[length:] if is_same else None


def own_program(environ: Mapping[str, str], *options: str) -> Program:
    """This installation's `pml up --foreground`, for the home and configuration of this shell.

    PATH is kept too: what a login has of its own often lacks the folder of npx or uvx.

    Raises:
        ConfigurationError: a word has control characters, or bytes that are no text.
    """
    path = {"PATH": environ["PATH"]} if environ.get("PATH") else {}
    program = Program((*pml_command(), "up", "--foreground", "--by-service", *options), {**own_places(environ), **path})
    for word in (*program.command, *program.environ.values()):
        if not can_be_written(word):
            raise ConfigurationError(
                f"{word!r} has characters that no unit of systemd or launchd can hold",
                hint="install pml, and put PML_HOME and PML_CONFIG, in folders whose paths have none of them",
            )
    return program


def can_be_written(word: str) -> bool:
    """Whether both formats hold a word as it is: it is text, without control characters."""
    return not any(unicodedata.category(each) in _NO_TEXT or _is_noncharacter(each) for each in word)


def _is_noncharacter(character: str) -> bool:
    return ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF
