"""Shared files: written whole or not at all; locks are held by one, and never another user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.files import lock_if_free, locked, make_private, write_atomically


def test_a_lock_that_is_not_released_is_waited_for_with_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with (
        locked(path),
        pytest.raises(TimeoutError, match="another process has been writing it") as raised,
        locked(path, timeout=0.05),
    ):
        pytest.fail("held twice")
    assert raised.value.filename == str(path)
    with locked(path, timeout=0):
        pass


def test_a_failure_while_it_is_held_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ValueError, match="mine"), locked(path):
        raise ValueError("mine")
    with lock_if_free(path) as is_held:
        assert is_held


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "config.yaml", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    elsewhere.chmod(0o644)
    (tmp_path / ".config.yaml.lock").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"\.config\.yaml\.lock"), locked(path):
        pytest.fail("followed")
    assert elsewhere.stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_leaves_nothing_beside(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    (taken / "by a folder").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_atomically(str(taken), b"x")
    assert [*tmp_path.iterdir()] == [taken]


def test_a_file_is_replaced_with_the_mode_that_is_asked_for_in_folders_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "made" / "here" / "file"
    write_atomically(file, "ünïcode")
    assert file.read_text(encoding="utf-8") == "ünïcode"
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)] == [0o600, 0o700, 0o700]
    write_atomically(file, b"others read it", 0o644)
    assert file.stat().st_mode & 0o777 == 0o644
    assert [*file.parent.iterdir()] == [file]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "below")
    with pytest.raises(NotADirectoryError):
        write_atomically(tmp_path / "file" / "below", "mine as well")
