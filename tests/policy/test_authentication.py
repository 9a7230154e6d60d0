"""A bearer key says who is asking; nothing else does."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.settings import ClientSettings, Settings
from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.policy.authentication import CHALLENGE, MIN_KEY_LENGTH, Authenticator
from pml_gateway.policy.principal import ANONYMOUS, LOCAL, Principal, PrincipalKind
from pml_gateway.types import ExposureMode
from tests.support.principals import principal

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"
ADDRESS = "192.0.2.7"


def authenticator(**clients: ClientSettings) -> Authenticator:
    return Authenticator(Settings(clients=clients), os.environ)


def found(keys: Authenticator, key: str) -> Principal | None:
    identified = keys.identify(f"Bearer {key}", ADDRESS)
    return identified if isinstance(identified, Principal) else None


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    monkeypatch.setenv("FIRST", FIRST)
    monkeypatch.setenv("SECOND", SECOND)
    return authenticator(
        ci=ClientSettings(
            key="${env:FIRST}",
            allow=("github:*",),
            deny=("*:delete_*",),
            mode=ExposureMode.META_ONLY,
            intent="triage issues",
        ),
        dev=ClientSettings(key="${env:SECOND}"),
    )


def test_a_key_finds_its_client_with_its_rules(keys: Authenticator) -> None:
    assert found(keys, FIRST) == principal(
        "client:ci",
        allow=("github:*",),
        deny=("*:delete_*",),
        mode=ExposureMode.META_ONLY,
        intent="triage issues",
    )
    assert found(keys, SECOND) == principal("client:dev")


def test_a_session_is_of_the_holder_of_the_key_that_came_with_it(keys: Authenticator) -> None:
    assert keys.identify(f"Bearer {SECOND}", ADDRESS, "session") == principal("client:dev")


@pytest.mark.parametrize("key", ["", FIRST[:-1], FIRST + "x", FIRST.upper(), "ci", "${env:FIRST}"])
def test_any_other_key_is_challenged(keys: Authenticator, key: str) -> None:
    assert keys.identify(f"Bearer {key}", ADDRESS) == CHALLENGE


@pytest.mark.parametrize("authorization", ["", "Bearer", FIRST, f"Basic {FIRST}", f"Bearer{FIRST}"])
def test_a_key_counts_as_a_bearer_key_only(keys: Authenticator, authorization: str) -> None:
    assert keys.identify(authorization, ADDRESS) == CHALLENGE


@given(key=st.text(st.characters()))
def test_any_text_may_be_tried_as_a_key(key: str) -> None:
    entry = ClientSettings(key="${env:FIRST}")
    keys = Authenticator(Settings(clients={"ci": entry}), {"FIRST": FIRST})
    assert keys.identify(f"Bearer {key}", ADDRESS) == CHALLENGE


def test_without_keys_a_request_is_of_its_address_or_of_its_session() -> None:
    keys = authenticator()
    unknown, in_session = keys.identify("", ADDRESS), keys.identify("Bearer x", ADDRESS, "1")
    assert isinstance(unknown, Principal) and isinstance(in_session, Principal)
    assert (unknown.id, unknown.account) == (ANONYMOUS.id, ANONYMOUS.id)
    assert (in_session.id, in_session.account) == ("session:1", ANONYMOUS.id)
    assert unknown.quota_key == in_session.quota_key != ANONYMOUS.id
    assert "1" not in in_session.shown


def test_metrics_need_their_own_key_where_there_is_one_and_none_of_a_client(keys: Authenticator) -> None:
    metrics_key = "metrics-key-0123456789"
    assert keys.may_scrape(f"Bearer {metrics_key}", metrics_key)
    assert not keys.may_scrape(f"Bearer {FIRST}", metrics_key)
    assert not keys.may_scrape(f"Bearer {FIRST}", None)
    assert authenticator().may_scrape("", None)
    assert not authenticator().may_scrape("", metrics_key)


def test_a_short_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "k" * (MIN_KEY_LENGTH - 1))
    with pytest.raises(ConfigurationError, match=r"clients\.ci\.key has 15 characters; at least 16") as caught:
        authenticator(ci=ClientSettings(key="${env:SHORT}"))
    assert "kkk" not in str(caught.value)
    monkeypatch.setenv("SHORT", "k" * MIN_KEY_LENGTH)
    assert found(authenticator(ci=ClientSettings(key="${env:SHORT}")), "k" * MIN_KEY_LENGTH)


def test_a_key_of_two_clients_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", FIRST)
    entry = ClientSettings(key="${env:KEY}")
    with pytest.raises(ConfigurationError, match="two clients have the same key") as caught:
        authenticator(a=entry, b=entry)
    assert FIRST not in str(caught.value)


def test_a_key_that_cannot_be_resolved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(SecretError, match="MISSING"):
        authenticator(ci=ClientSettings(key="${env:MISSING}"))


def test_a_key_with_bytes_that_are_no_text_works(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"\xff\xfe-key-0123456789".decode("utf-8", "surrogateescape")
    monkeypatch.setenv("BYTES", key)
    holder = found(authenticator(ci=ClientSettings(key="${env:BYTES}")), key)
    assert holder is not None and holder.id == "client:ci"


def test_keys_are_kept_as_hashes_only(keys: Authenticator) -> None:
    kept = repr(vars(keys))
    assert FIRST not in kept
    assert repr(hashlib.sha256(FIRST.encode()).digest()) in kept


def test_every_key_is_compared_in_constant_time_whichever_matches(
    keys: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(len(left))
        return left == right

    monkeypatch.setattr("pml_gateway.policy.authentication.hmac.compare_digest", compare)
    for key in (FIRST, SECOND, "x", FIRST * 1000):
        compared.clear()
        keys.identify(f"Bearer {key}", ADDRESS)
        assert compared == [32, 32]


def test_clients_with_equal_rules_share_a_view_whoever_they_are() -> None:
    assert LOCAL.rules == ANONYMOUS.rules == principal("client:a", intent="x", mode=ExposureMode.HYBRID).rules
    assert LOCAL.rules != principal("client:a", deny=("x",)).rules
    assert (LOCAL.id, LOCAL.kind) == ("local", PrincipalKind.LOCAL) and LOCAL.id != ANONYMOUS.id
