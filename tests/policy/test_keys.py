"""The file of keys: hashes only, closed to others, and whole whatever several processes do to it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.policy import keys
from pml_gateway.policy.keys import KEY_PREFIX, KeyStore
from pml_gateway.secrets.judgement import KNOWN_CREDENTIAL
from tests.support.memory import paths_in


def store_in(folder: Path) -> KeyStore:
    return KeyStore(paths_in(folder), "test")


def test_a_key_is_kept_as_its_hash_in_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    made = store_in(tmp_path).add("ci")
    file = paths_in(tmp_path).keys_file
    content = file.read_text(encoding="utf-8")
    assert made.text not in content and made.text.removeprefix(KEY_PREFIX) not in content
    assert hashlib.sha256(made.text.encode()).hexdigest() in content
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert made.text not in repr(store_in(tmp_path).all())


def test_keys_are_long_differ_and_are_known_as_secrets_by_their_looks(tmp_path: Path) -> None:
    made = [store_in(tmp_path).add("ci").text for _ in range(20)]
    assert len(set(made)) == 20
    assert all(len(text) == len(KEY_PREFIX) + 43 and KNOWN_CREDENTIAL.fullmatch(text) for text in made)


def test_keys_added_and_revoked_at_once_are_all_seen(tmp_path: Path) -> None:
    old = [store_in(tmp_path).add("ci").key_id for _ in range(5)]
    with ThreadPoolExecutor(10) as threads:
        added = [threads.submit(store_in(tmp_path).add, "ci") for _ in range(5)]
        revoked = [threads.submit(store_in(tmp_path).revoke, [key_id]) for key_id in old]
        assert all(each.result() for each in revoked)
    assert store_in(tmp_path).all().keys() == {each.result().key_id for each in added}


def test_revoking_an_unknown_key_changes_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    known = store.add("ci").key_id
    with pytest.raises(UsageError, match="no key 'nothing'"):
        store.revoke([known, "nothing"])
    with pytest.raises(UsageError, match="no key"):
        KeyStore(paths_in(tmp_path), "another").revoke([known])
    assert store.all().keys() == {known}


def test_there_is_a_limit_whose_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    store = store_in(tmp_path)
    store.add("ci")
    store.add("ci")
    with pytest.raises(ConfigurationError, match="2 are the most") as caught:
        store.add("ci")
    assert "pml keys revoke" in caught.value.hint


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    made = store.add("ci")
    file = paths_in(tmp_path).keys_file
    file.write_text("{", encoding="utf-8")
    for work in (store.all, lambda: store.add("ci"), lambda: store.revoke([made.key_id])):
        with pytest.raises(ConfigurationError, match="damaged"):
            work()
    assert file.read_text(encoding="utf-8") == "{"
    assert store.in_force(datetime.now(UTC)) == {}
