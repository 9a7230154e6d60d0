"""Change of settings in the configuration file, checked before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pml_gateway.activity.migration import refuse_overruled
from pml_gateway.config.edits.edit import FileEdit, edit_file, set_values
from pml_gateway.config.layers import layer_of, merge
from pml_gateway.config.load import LoadedSettings, check_text
from pml_gateway.config.single_settings import setting_tree


def change_settings(file: Path, values: Mapping[str, Any], loaded: LoadedSettings, *, dry_run: bool) -> FileEdit:
    """Write settings into the configuration file; with `dry_run`, only find out what that changes.

    Args:
        file: the configuration file.
        values: the settings by dotted key.
        loaded: the settings in force.
        dry_run: write nothing.

    Raises:
        UsageError: there is no such setting.
        ConfigurationError: a value is invalid, another source overrides the file, or it cannot be edited safely.
    """
    tree = merge(layer_of("user", setting_tree(key, value), str(file)) for key, value in values.items()).values
    refuse_overruled(loaded.origins, tree)

    def change(text: str) -> str:
        changed = set_values(text, tree, file)
        check_text(changed, file)
        return changed

    return edit_file(file, change, dry_run=dry_run)
