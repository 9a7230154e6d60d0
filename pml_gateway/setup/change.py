"""A change of the user's configuration: previewed, written with a backup, and told to the gateways that run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pml_gateway.config.edits.edit import FileEdit, edit_file
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import Paths
from pml_gateway.secrets.env_file import store_variables


class ChangedMeanwhileError(ConfigurationError):
    """Another program has changed what a person has agreed to change."""


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ConfigurationChange:
    """A change of the user's configuration file, and of what is kept with it.

    Args:
        paths: the gateway's files.
        edit: returns the new text of the configuration.
        values: values that are stored as secrets, because the new text refers to them.
        freed: stored variables whose values may be replaced.
        prepare: runs before the file is written.
        conclude: runs once gateways follow; returns a warning, or nothing.
    """

    paths: Paths
    edit: Callable[[str], str]
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    freed: Collection[str] = ()
    prepare: Callable[[], object] = _nothing
    conclude: Callable[[], str] = _nothing

    def preview(self) -> FileEdit:
        """Return the edit without making it."""
        return edit_file(self.paths.config_file, self.edit, dry_run=True)

    def write(self, seen: FileEdit | None = None) -> FileEdit:
        """Write the file. Gateways that run are told next, then it is concluded.

        Args:
            seen: the preview that was agreed to, if no other edit may be made.

        Raises:
            ChangedMeanwhileError: the file is no longer as it was seen.
            ConfigurationError: it cannot be read or written.
        """

        def edit(text: str) -> str:
            if seen is not None and text != seen.before:
                raise ChangedMeanwhileError(
                    f"{self.paths.config_file} was changed by another program just now", hint="look at it again"
                )
            return self.edit(text)

        if seen is not None:
            # Before secrets are stored, which the edit itself would refuse too late.
            edit_file(self.paths.config_file, edit, dry_run=True)
        if self.values:
            store_variables(self.paths.secrets_file, self.values, self.freed)
        self.prepare()
        return edit_file(self.paths.config_file, edit)
