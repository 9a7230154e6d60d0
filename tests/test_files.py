"""Locks beside shared files: held by one, given up waiting for with a reason, and never somebody else's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.files import lock_if_free, locked


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
