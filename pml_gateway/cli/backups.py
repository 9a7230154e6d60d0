"""`pml backups`: what is kept of files that pml changed, why, and how it comes back or goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pml_gateway.cli.completion import backup_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import JsonOption
from pml_gateway.cli.output import note, print_diff, print_json, print_table, short_path
from pml_gateway.clients.backups import Backup, chosen, prune, restore, to_prune
from pml_gateway.clients.connect import ConnectedFiles, backups_here
from pml_gateway.paths import Paths
from pml_gateway.text import counted

backups_app = typer.Typer(name="backups", no_args_is_help=False)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, write nothing.")]

_AGE = re.compile(r"(\d{1,5})([dhw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@backups_app.callback(invoke_without_command=True)
def backups(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the backups of files that pml changed: of which file, since when, why they are kept.

    Backups of clients' files go by themselves once `pml disconnect` has undone the change. They may hold secrets, and
    only you can read them.

    Example: pml backups
    """
    if context.invoked_subcommand is not None:
        return
    found = backups_here(Paths.from_environ(), Path.cwd())
    if as_json:
        print_json({"backups": [_object(backup) for backup in found]})
        return
    if not found:
        note("there are no backups")
        return
    _show(found)
    unneeded = to_prune(found, everything=False, before=None)
    if unneeded:
        note(f"{counted(len(unneeded), 'backup')} that nothing needs: pml backups prune")


@backups_app.command("restore")
def restore_backup(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `pml backups` lists it.", autocompletion=backup_names)
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup back in the place of its file. What stands there now is kept, so that this can be undone.

    Example: pml backups restore config.yaml.bak-20260301-101500 --dry-run
    """
    change = restore(chosen(backups_here(Paths.from_environ(), Path.cwd()), name), Paths.from_environ())
    if not as_json:
        print_diff(change.diff)
    asked = Consent(yes, dry_run, as_json)
    is_written = change.has_changed and asked.agrees(f"Write {change.file}?")
    kept = change.write() if is_written else None
    if as_json:
        print_json(
            {
                "file": str(change.file),
                "changed": change.has_changed,
                "written": is_written,
                "backup": str(kept) if kept else None,
                "diff": change.diff,
            }
        )
    elif is_written:
        note(f"wrote {change.file}")
        if kept:
            note(f"undo: pml backups restore {kept.name}")
    elif not change.has_changed:
        note(f"{change.file} says this already")
    elif not asked.is_impossible:
        note("nothing was written")
    if change.has_changed:
        asked.refuse_if_impossible()


@backups_app.command("prune")
def prune_backups(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that an undo needs, which is then no longer exact.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Only older ones: 30d, 12h, 4w.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove backups that nothing needs: no undo, and of configuration files not the last texts.

    With --older-than, also old texts of configuration files; with --all, every backup there is.

    Example: pml backups prune --older-than 30d --dry-run
    """
    before = _before(older_than)
    paths = Paths.from_environ()
    gone = to_prune(backups_here(Paths.from_environ(), Path.cwd()), everything=everything, before=before)
    if not as_json:
        _show(gone)
    asked = Consent(yes, dry_run, as_json)
    is_done = bool(gone) and asked.agrees(f"Remove {counted(len(gone), 'backup')}?", default=False)
    if is_done:
        # First: a connection whose backup is gone could not be undone at all.
        ConnectedFiles(paths).give_up([backup.path for backup in gone])
        prune(gone, paths)
    if as_json:
        print_json({"backups": [_object(backup) for backup in gone], "removed": is_done})
    elif is_done:
        note(f"removed {counted(len(gone), 'backup')}")
    elif not gone:
        note("there is nothing to remove")
    elif not asked.is_impossible:
        note("nothing was removed")
    if gone:
        asked.refuse_if_impossible()


def _before(age: str | None) -> datetime | None:
    if age is None:
        return None
    match = _AGE.fullmatch(age)
    if match is None:
        raise typer.BadParameter(f"{age!r} is no age; write 30d, 12h or 4w", param_hint="--older-than")
    return datetime.now() - int(match[1]) * _UNITS[match[2]]


def _show(found: Sequence[Backup]) -> None:
    if found:
        print_table(
            ("BACKUP", "OF", "KB", "KEPT"),
            [
                (
                    backup.name,
                    short_path(backup.file) if backup.file else "not known",
                    f"{max(1, round(backup.size / 1024)):,}",
                    f"{backup.at:%Y-%m-%d %H:%M}, {backup.why}",
                )
                for backup in found
            ],
        )


def _object(backup: Backup) -> dict[str, object]:
    return {
        "name": backup.name,
        "path": str(backup.path),
        "kind": backup.kind,
        "file": str(backup.file) if backup.file else None,
        "client": backup.client or None,
        "at": backup.at.isoformat(timespec="seconds"),
        "bytes": backup.size,
        "why": backup.why,
        "needed": backup.is_needed,
    }
