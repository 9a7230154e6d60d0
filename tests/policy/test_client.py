"""A bearer key says who is asking; nothing else does."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.settings import ClientSettings
from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.policy.client import ANONYMOUS, LOCAL, MIN_KEY_LENGTH, Client, ClientKeys
from pml_gateway.types import ExposureMode

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> ClientKeys:
    monkeypatch.setenv("FIRST", FIRST)
    monkeypatch.setenv("SECOND", SECOND)
    return ClientKeys(
        {
            "ci": ClientSettings(
                key="${env:FIRST}",
                allow=("github:*",),
                deny=("*:delete_*",),
                mode=ExposureMode.META_ONLY,
                intent="triage issues",
            ),
            "dev": ClientSettings(key="${env:SECOND}"),
        }
    )


def test_a_key_finds_its_client_with_its_rules(keys: ClientKeys) -> None:
    assert keys
    assert keys.find(FIRST) == Client(
        "client:ci", ("github:*",), ("*:delete_*",), ExposureMode.META_ONLY, "triage issues"
    )
    assert keys.find(SECOND) == Client("client:dev")


@pytest.mark.parametrize("key", ["", FIRST[:-1], FIRST + "x", FIRST.upper(), f" {FIRST}", "ci", "${env:FIRST}"])
def test_any_other_key_finds_nobody(keys: ClientKeys, key: str) -> None:
    assert keys.find(key) is None


@given(key=st.text(st.characters()))
def test_any_text_may_be_tried_as_a_key(key: str) -> None:
    assert ClientKeys({}).find(key) is None


def test_no_clients_means_no_keys() -> None:
    assert not ClientKeys({})


def test_a_short_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "k" * (MIN_KEY_LENGTH - 1))
    with pytest.raises(ConfigurationError, match=r"clients\.ci\.key has 15 characters; at least 16") as caught:
        ClientKeys({"ci": ClientSettings(key="${env:SHORT}")})
    assert "kkk" not in str(caught.value)
    monkeypatch.setenv("SHORT", "k" * MIN_KEY_LENGTH)
    assert ClientKeys({"ci": ClientSettings(key="${env:SHORT}")})


def test_a_key_of_two_clients_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", FIRST)
    entry = ClientSettings(key="${env:KEY}")
    with pytest.raises(ConfigurationError, match="two clients have the same key") as caught:
        ClientKeys({"a": entry, "b": entry})
    assert FIRST not in str(caught.value)


def test_a_key_that_cannot_be_resolved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(SecretError, match="MISSING"):
        ClientKeys({"ci": ClientSettings(key="${env:MISSING}")})


def test_a_key_with_bytes_that_are_no_text_works(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"\xff\xfe-key-0123456789".decode("utf-8", "surrogateescape")
    monkeypatch.setenv("BYTES", key)
    found = ClientKeys({"ci": ClientSettings(key="${env:BYTES}")}).find(key)
    assert found is not None and found.id == "client:ci"


def test_keys_are_kept_as_hashes_only(keys: ClientKeys) -> None:
    kept = repr(vars(keys))
    assert FIRST not in kept
    assert repr(hashlib.sha256(FIRST.encode()).digest()) in kept


def test_every_key_is_compared_in_constant_time_whichever_matches(
    keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(len(left))
        return left == right

    monkeypatch.setattr("pml_gateway.policy.client.hmac.compare_digest", compare)
    for key in (FIRST, SECOND, "x", FIRST * 1000):
        compared.clear()
        keys.find(key)
        assert compared == [32, 32]


def test_clients_with_equal_rules_share_a_view_whoever_they_are() -> None:
    assert LOCAL.rules == ANONYMOUS.rules == Client("client:a", intent="x", mode=ExposureMode.HYBRID).rules
    assert LOCAL.rules != Client("client:a", deny=("x",)).rules
    assert LOCAL.id != ANONYMOUS.id
