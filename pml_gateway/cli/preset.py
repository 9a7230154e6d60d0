"""Applying a preset to the configuration file, shown as it is made."""

from __future__ import annotations

from pathlib import Path

from pml_gateway.cli.output import note, print_diff, print_json, warn
from pml_gateway.config.advice import intent_sources
from pml_gateway.config.edit import FileEdit, apply_preset, edit_file
from pml_gateway.config.layers import dotted
from pml_gateway.config.load import load_settings
from pml_gateway.config.presets import EXPOSURE_KEYS, Preset
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import Paths


def write_preset(preset: Preset, config_file: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Apply a preset to the configuration file, or show what that would change.

    Raises:
        ConfigurationError: the file cannot be read, written or edited safely.
    """
    file = config_file or Paths.from_environ().config_file
    edit = edit_file(file, lambda text: apply_preset(text, preset, file), dry_run=dry_run)
    warnings = consequences(preset, edit)
    if as_json:
        print_json(
            {
                "preset": preset.name,
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
        note(f"{edit.path} already says what {preset.name} says")
    elif dry_run:
        note(f"nothing was written; without --dry-run {edit.path} is changed as shown")
    else:
        note(f"wrote {edit.path}{f' (the text before is in {edit.backup})' if edit.backup else ''}")
    for warning in warnings:
        warn(warning)


def consequences(preset: Preset, edit: FileEdit) -> list[str]:
    """Return warnings about the preset: no intent, or another source that overrides the file."""
    is_readable = edit.path.exists()
    try:
        loaded = load_settings(config_file=edit.path if is_readable else None, preset=preset.name)
        in_force = load_settings(config_file=edit.path if is_readable else None)
    except ConfigurationError as error:
        return [f"the configuration has other problems: {error}"]
    overruled = [
        f"{found.location} sets {key} and wins over the file"
        for key in map(dotted, EXPOSURE_KEYS)
        if (found := in_force.origins[key]).source in ("project", "environment")
    ]
    return [*overruled, *intent_sources(loaded.settings)]
