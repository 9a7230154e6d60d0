"""Edit of settings in the configuration file, checked before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pml_gateway.activity.migration import refuse_overruled
from pml_gateway.config.edits.edit import set_values
from pml_gateway.config.layers import layer_of, merge
from pml_gateway.config.load import LoadedSettings, check_text
from pml_gateway.config.single_settings import setting_tree


def setting_edit(file: Path, values: Mapping[str, Any], loaded: LoadedSettings) -> Callable[[str], str]:
    """Return the edit that writes settings into the text of the configuration file.

    Args:
        file: the configuration file.
        values: the settings by dotted key.
        loaded: the settings in force.

    Raises:
        UsageError: there is no such setting.
        ConfigurationError: another source overrides the file; from the edit itself, a value is invalid, or the text
            cannot be edited safely.
    """
    tree = merge(layer_of("user", setting_tree(key, value), str(file)) for key, value in values.items()).values
    refuse_overruled(loaded.origins, tree)

    def edit(text: str) -> str:
        changed = set_values(text, tree, file)
        check_text(changed, file)
        return changed

    return edit
