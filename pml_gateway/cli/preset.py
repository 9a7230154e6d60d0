"""Edits of the configuration file, shown as they are made; those of presets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pml_gateway.cli.output import note, note_written, print_diff, print_json, warn
from pml_gateway.config.edits.edit import FileEdit
from pml_gateway.config.presets import Preset
from pml_gateway.paths import Paths
from pml_gateway.setup.presets import PresetChange, consequences
from pml_gateway.types import JsonObject


def write_preset(preset: Preset, config_file: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Apply a preset to the configuration file, or show what that would change.

    Raises:
        ConfigurationError: the file cannot be read, written or edited safely.
    """
    change = PresetChange(preset, config_file or Paths.from_environ().config_file)
    [edit] = change.edits(dry_run=dry_run)
    show_edit(
        edit,
        {"preset": preset.name},
        f"what {preset.name} says",
        consequences(preset, edit),
        dry_run=dry_run,
        as_json=as_json,
    )


def show_edit(
    edit: FileEdit, name: JsonObject, text: str, warnings: Sequence[str], *, dry_run: bool, as_json: bool
) -> None:
    """Show an edit of the configuration file.

    Args:
        edit: the edit.
        name: the changed setting or the preset, for programs.
        text: what the file says if nothing has changed.
        warnings: warnings about it.
        dry_run: nothing was written.
        as_json: print JSON.
    """
    if as_json:
        print_json(
            {
                **name,
                "file": str(edit.path),
                "changed": edit.has_changed,
                "written": edit.has_changed and not dry_run,
                "backup": str(edit.backup) if edit.backup else None,
                "diff": edit.diff,
                "warnings": warnings,
            }
        )
        return
    print_diff(edit.diff)
    if not edit.has_changed:
        note(f"{edit.path} already says {text}")
    elif dry_run:
        note(f"nothing was written; without --dry-run {edit.path} is changed as shown")
    else:
        note_written(edit.path, edit.backup)
    for warning in warnings:
        warn(warning)
