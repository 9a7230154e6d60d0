"""Change to a preset: the edits of the configuration and the project's file, and what overrides or lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.places import Surroundings
from pml_gateway.config.edits.edit import FileEdit, apply_preset, edit_file, set_values
from pml_gateway.config.findings import Area
from pml_gateway.config.layers import dotted
from pml_gateway.config.load import load_settings
from pml_gateway.config.presets import EXPOSURE_KEYS, Preset
from pml_gateway.config.project import find_project_file
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import PROJECT_NAME


@dataclass(frozen=True, slots=True)
class PresetChange:
    """A preset to write into the configuration file, and an intent for the file of the project here."""

    preset: Preset
    file: Path
    intent: str | None = None

    def edits(self, *, dry_run: bool = False) -> list[FileEdit]:
        """Edit the configuration, and the project's file if there is an intent.

        Raises:
            ConfigurationError: a file cannot be read, written or edited safely.
        """
        edits = [edit_file(self.file, lambda text: apply_preset(text, self.preset, self.file), dry_run=dry_run)]
        if self.intent is not None:
            project = find_project_file(Path.cwd()) or Surroundings.here(Path.cwd()).project / PROJECT_NAME
            values = {"gateway": {"intent": self.intent}}
            edits.append(edit_file(project, lambda text: set_values(text, values, project), dry_run=dry_run))
        return edits

    def warnings(self, edits: Sequence[FileEdit], store: TrustStore) -> list[str]:
        """Return warnings about the preset, and about a project file that has to be approved again."""
        warnings = consequences(self.preset, edits[0])
        if self.intent is not None:
            # Until it is written, the intent is missed that is about to be there.
            warnings = [warning for warning in warnings if "no intent is configured" not in warning]
            project = edits[-1]
            was_trusted = bool(project.before) and store.is_trusted(project.path, project.before.encode())
            if was_trusted and project.has_changed:
                warnings.append(f"{project.path} was trusted as it was before; run `pml trust project` again")
        return warnings


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
    return [*overruled, *(str(each) for each in loaded.warnings if each.area is Area.INTENT)]
