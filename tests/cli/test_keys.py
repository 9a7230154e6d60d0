"""`pml keys`: a key is printed once; what a gateway accepts is listed by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.paths import Paths
from pml_gateway.policy.keys import KeyStore
from tests.support.command_line import home_of, pml

CLIENTS: dict[str, Any] = {"ci": {}, "dev": {}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with home_of(tmp_path, {"servers": {"a": {"command": "none"}}, "clients": CLIENTS}) as home:
        yield home


def listed() -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = json.loads(pml("keys", "list", "--json").stdout)["keys"]
    return keys


def store(*, of_owner: bool = False) -> KeyStore:
    paths = Paths.from_environ()
    return KeyStore(paths, paths.identity(None), of_owner=of_owner)


def test_a_key_is_printed_alone_and_never_again() -> None:
    made = pml("keys", "add", "ci", "--expires", "90d")
    [key] = made.stdout.split()
    assert key.startswith("pml_") and len(key) == 47
    [entry] = listed()
    assert entry["client"] == "ci" and entry["last_used_at"] is None and not entry["expired"]
    ends = datetime.fromisoformat(entry["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < ends <= timedelta(days=90)
    commands = (("keys", "list"), ("config", "show"), ("config", "show", "--json"))
    shown = [*(pml(*words).output for words in commands), pml("doctor", code=1).output]
    assert not any(key in each for each in shown)


def test_json_has_the_key_of_add_alone() -> None:
    made = json.loads(pml("keys", "add", "ci", "--json").stdout)
    assert made["key"].startswith("pml_") and made["expires_at"] is None
    assert listed() == [{name: value for name, value in made.items() if name != "key"}]


def test_a_client_must_be_configured() -> None:
    refused = pml("keys", "add", "cj", code=2)
    assert "no client 'cj' is configured" in refused.stderr and "ci, dev" in refused.stderr
    assert listed() == []


@pytest.mark.parametrize("span", ["90", "0d", "soon", "-1d"])
def test_a_span_that_is_none_is_refused(span: str) -> None:
    assert "no span of time" in pml("keys", "add", "ci", f"--expires={span}", code=2).stderr
    assert listed() == []


def test_keys_are_revoked_by_id_or_by_client() -> None:
    first, second, other = (store().add(client).key_id for client in ("ci", "ci", "dev"))
    assert "revoked 1 key" in pml("keys", "revoke", first, "--yes").stderr
    assert {each["id"] for each in listed()} == {second, other}
    done = json.loads(pml("keys", "revoke", "--client", "ci", "--yes", "--json").stdout)
    assert done == {"keys": [second], "revoked": True}
    assert [each["id"] for each in listed()] == [other]


def test_without_a_terminal_or_yes_nothing_is_revoked() -> None:
    key_id = store().add("ci").key_id
    assert "nothing was revoked" in pml("keys", "revoke", key_id, code=2).stderr
    pml("keys", "revoke", key_id, "--client", "ci", "--yes", code=2)
    pml("keys", "revoke", "--yes", code=2)
    pml("keys", "revoke", key_id, "ffffffff", "--yes", code=2)
    assert [each["id"] for each in listed()] == [key_id]


def test_doctor_names_keys_that_end_and_clients_without_one() -> None:
    now = datetime.now(UTC)
    ended = store().add("ci", now - timedelta(days=3)).key_id
    ending = store().add("ci", now + timedelta(days=5, hours=1)).key_id
    fine = store().add("ci", now + timedelta(days=100)).key_id
    stray = store().add("gone").key_id
    found = " ".join(pml("doctor", "--json", code=1).stdout.split())
    assert f"the key {ended} has expired" in found
    assert f"the key {ending} ends in 5 d" in found
    assert f"the key {stray} is of a client that is not configured" in found
    assert "clients.dev" in found and "has no key" in found
    assert fine not in found


def test_a_token_of_the_owner_is_made_listed_and_revoked_as_a_key_of_no_client() -> None:
    made = pml("keys", "add", "--owner")
    [token] = made.stdout.split()
    assert token.startswith("pml_owner_") and len(token) == 53
    assert "give it to no client" in " ".join(made.stderr.split())
    key_id = store().add("ci").key_id
    assert token not in Paths.from_environ().keys_file.read_text(encoding="utf-8")
    assert "(the owner)" in pml("keys", "list").stdout
    [owners] = [each["id"] for each in listed() if each["client"] is None]
    assert (list(store().all()), list(store(of_owner=True).all())) == ([key_id], [owners])
    second = store(of_owner=True).add(expires_at=datetime.now(UTC) - timedelta(days=1)).key_id
    assert f"your token {second} has expired" in " ".join(pml("doctor", code=1).output.split())
    pml("keys", "revoke", key_id, second, "--yes")
    assert [each["id"] for each in listed()] == [owners]
    pml("keys", "revoke", "--owner", "--yes")
    assert listed() == []


@pytest.mark.parametrize("words", [("add",), ("add", "ci", "--owner"), ("revoke", "--owner", "--client", "ci")])
def test_it_must_be_clear_whose_key_is_meant(words: tuple[str, ...]) -> None:
    assert "it is not clear" in pml("keys", *words, code=2).stderr


def test_a_damaged_file_is_said_with_its_remedy() -> None:
    store().add("ci")
    Paths.from_environ().keys_file.write_text("{", encoding="utf-8")
    assert "keys.json is damaged" in pml("keys", "list", code=78).stderr
    assert "keys.json is damaged" in " ".join(pml("doctor", code=78).output.split())
