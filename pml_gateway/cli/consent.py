"""The question before a change: asked on a terminal, answered by `--yes`, left out where nothing is to be changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from pml_gateway.cli.output import ExitCode
from pml_gateway.errors import UsageError

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, write nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Consent:
    """The way to make a change: asked for on a terminal unless `yes`, and only shown with `dry_run`."""

    yes: bool
    dry_run: bool = False
    as_json: bool = False

    @property
    def is_interactive(self) -> bool:
        """Return True if the user can be asked, and has not answered yet."""
        return not (self.yes or self.dry_run or self.as_json) and sys.stdin.isatty()

    @property
    def is_impossible(self) -> bool:
        """Return True if a change needs an answer that the user cannot be asked for."""
        return not (self.yes or self.dry_run or self.is_interactive)

    def agrees(self, question: str, *, default: bool = True) -> bool:
        """Return True if the change is to be made; ask where that is open."""
        return not self.dry_run and (
            self.yes or (self.is_interactive and typer.confirm(question, default=default, err=True))
        )

    def refuse_if_impossible(
        self, *, done: str = "written", remedy: str = "--yes to write this, or with --dry-run to look only"
    ) -> None:
        """End a command that had something to do and cannot ask; its answer is printed already.

        Args:
            done: what was not done.
            remedy: what to run it with.

        Raises:
            typer.Exit: with `--json`.
            UsageError: otherwise.
        """
        if not self.is_impossible:
            return
        if self.as_json:
            raise typer.Exit(ExitCode.USAGE)
        raise UsageError(f"nothing was {done}, for there is no terminal to ask on", hint=f"run it with {remedy}")
