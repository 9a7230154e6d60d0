"""A change of the configuration that somebody has agreed to is made as it was seen, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.paths import Paths
from pml_gateway.setup.change import ChangedMeanwhileError, ConfigurationChange


def change_in(folder: Path) -> tuple[Paths, ConfigurationChange]:
    paths = Paths.from_environ({"PML_HOME": str(folder)})
    paths.config_file.write_text("servers: {}\n")
    return paths, ConfigurationChange(paths, lambda text: f"{text}log: {{level: debug}}\n", {"A_TOKEN": "secret"})


def test_what_was_seen_is_written_with_a_backup_and_its_secrets(tmp_path: Path) -> None:
    paths, change = change_in(tmp_path)
    made = change.write(change.preview())
    assert paths.config_file.read_text() == "servers: {}\nlog: {level: debug}\n"
    assert made.backup is not None
    assert made.backup.read_text() == "servers: {}\n"
    assert "A_TOKEN" in paths.secrets_file.read_text()


def test_a_file_that_changed_meanwhile_stays_and_no_secret_is_stored(tmp_path: Path) -> None:
    paths, change = change_in(tmp_path)
    seen = change.preview()
    paths.config_file.write_text("servers: {} # edited\n")
    with pytest.raises(ChangedMeanwhileError):
        change.write(seen)
    assert paths.config_file.read_text() == "servers: {} # edited\n"
    assert not paths.secrets_file.exists()
