"""What waits for an answer: given to its owner alone, for one request, once, and not for ever."""

from __future__ import annotations

import pytest

from pml_gateway.policy.principal import Principal, anonymous_session
from pml_gateway.storage.pending import MAX_PENDING, MAX_SECONDS, PendingNotFoundError, PendingTable, fingerprint
from tests.support.principals import principal

A, B = principal("client:a"), principal("client:b")


def add(table: PendingTable[str], client: Principal, payload: str = "run", request: str = "request") -> str:
    return table.add(payload, owner=client.id, quota_key=client.quota_key, fingerprint=request)


def take(table: PendingTable[str], client: Principal, state: str, request: str = "request") -> str:
    return table.take(state, owner=client.id, fingerprint=request)


def test_entries_are_their_owners_alone_and_do_not_pile_up() -> None:
    now = [0.0]
    table: PendingTable[str] = PendingTable("run", clock=lambda: now[0])
    kept = add(table, B)
    states = [add(table, A) for _ in range(MAX_PENDING)]
    for client, request, state in ((A, "request", states[0]), (B, "request", states[1]), (A, "other", states[1])):
        with pytest.raises(PendingNotFoundError):
            take(table, client, state, request)
    assert take(table, A, states[1]) == "run"
    with pytest.raises(PendingNotFoundError):
        take(table, A, states[1])
    assert take(table, B, kept) == "run"
    kept = add(table, B)
    now[0] = MAX_SECONDS
    with pytest.raises(PendingNotFoundError):
        take(table, B, kept)


def test_sessions_without_a_key_from_one_address_share_their_entries() -> None:
    table: PendingTable[str] = PendingTable("run")
    other = anonymous_session("other", "address:192.0.2.2")
    kept = add(table, other)
    for number in range(MAX_PENDING):
        add(table, anonymous_session(f"{number}", "address:192.0.2.1"))
    assert take(table, other, kept) == "run"


def test_what_cannot_go_on_is_given_up_and_what_goes_on_is_not() -> None:
    now, given_up = [0.0], list[str]()
    table: PendingTable[str] = PendingTable("call", 10, give_up=given_up.append, clock=lambda: now[0])
    taken = add(table, A, "taken")
    add(table, A, "expired")
    take(table, A, taken)
    now[0] = 10.0
    add(table, B, "left")
    add(table, A, "over")
    assert given_up == ["expired"]
    table.drop("left".__eq__)
    table.drop("over".__eq__)
    table.drop("taken".__eq__)
    assert given_up == ["expired", "left", "over"]


def test_a_fingerprint_tells_requests_apart_by_target_and_arguments() -> None:
    assert fingerprint("t", {"a": 1, "b": 2}) == fingerprint("t", {"b": 2, "a": 1})
    assert len({fingerprint("t", {"a": 1}), fingerprint("t", {"a": "1"}), fingerprint("u", {"a": 1})}) == 3
    assert fingerprint("t", {"a": "\ud800"}) != fingerprint("t", {"a": "\ud801"})
