"""Pins that two replicas changed without knowing of each other: the owner's last word about each form holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pml_gateway.storage.sealing import Sealing
from pml_gateway.storage.shared_documents import SharedDocuments
from pml_gateway.trust.identity import digest
from pml_gateway.trust.merging import merged
from pml_gateway.trust.pins import Acceptance, Form, HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.verdict import SubjectKind
from tests.storage.test_redis import KEY

NOTE = (SubjectKind.TOOL, "note")
A, B = "a form", "b form"


def accepted(text: str, at: float, how: Acceptance = Acceptance.NO_ATTACK) -> Form:
    definition = {"name": "note", "description": text}
    return Form(definition, digest(definition), how, at)


def held(text: str, at: float) -> HeldForm:
    definition = {"name": "note", "description": text}
    return HeldForm(definition, digest(definition), HoldReason.CHANGED, at)


def pins(*standings: Form | HeldForm, rejected: tuple[HeldForm, ...] = ()) -> Pins:
    forms = tuple(each for each in standings if isinstance(each, Form))
    waiting = tuple(each for each in standings if isinstance(each, HeldForm))
    server = ServerPins(
        "up",
        "w",
        {NOTE: forms} if forms else {},
        {NOTE: waiting} if waiting else {},
        {NOTE: rejected} if rejected else {},
    )
    return Pins({("up", "w"): server})


OWNER = Acceptance.OWNER


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param(pins(accepted(A, 1)), pins(accepted(B, 2)), pins(accepted(A, 1), accepted(B, 2)), id="both"),
        pytest.param(
            pins(accepted(A, 1), rejected=(held(B, 2),)),
            pins(accepted(A, 1), accepted(B, 9)),
            pins(accepted(A, 1), rejected=(held(B, 2),)),
            id="a rejection holds against what came by itself later",
        ),
        pytest.param(
            pins(accepted(A, 1), rejected=(held(B, 2),)),
            pins(accepted(A, 1), accepted(B, 3, OWNER)),
            pins(accepted(A, 1), accepted(B, 3, OWNER)),
            id="the owner accepts it later",
        ),
        pytest.param(
            pins(accepted(A, 1), rejected=(held(B, 4),)),
            pins(accepted(A, 1), accepted(B, 3, OWNER)),
            pins(accepted(A, 1), rejected=(held(B, 4),)),
            id="the owner rejects it later",
        ),
        pytest.param(
            pins(accepted(A, 1), accepted(B, 3, OWNER)),
            pins(accepted(A, 1), held(B, 2)),
            pins(accepted(A, 1), accepted(B, 3, OWNER)),
            id="it waits no longer",
        ),
        pytest.param(
            pins(rejected=(held(A, 5),)),
            pins(accepted(A, 1), accepted(B, 2)),
            pins(rejected=(held(A, 5),)),
            id="who rejects what is served wants none of it",
        ),
        pytest.param(
            pins(rejected=(held(A, 5),)),
            pins(accepted(A, 1), accepted(B, 6, OWNER)),
            pins(accepted(B, 6, OWNER), rejected=(held(A, 5),)),
            id="but what is accepted after that",
        ),
    ],
)
def test_merged_pins(one: Pins, other: Pins, expected: Pins) -> None:
    assert merged(one, other) == merged(other, one) == expected
    assert merged(expected, one) == merged(expected, other) == expected


def test_servers_and_rejected_texts_of_both_are_kept() -> None:
    mine = pins(accepted(A, 1)).with_rejected(["x", "y"])
    other = replace(pins(accepted(A, 1)).copied("up", "other"), rejected_texts=("y", "z"))
    found = merged(mine, other.without_server("up"))
    assert set(found.servers) == {("up", "w"), ("other", "w")}
    assert set(found.rejected_texts) == {"x", "y", "z"}


def test_a_replica_with_an_old_file_does_not_bring_back_what_was_rejected(redis_url: str, tmp_path: Path) -> None:
    def replica(name: str) -> tuple[SharedDocuments, PinsFile]:
        documents = SharedDocuments(redis_url, Sealing(KEY))
        return documents, PinsFile(tmp_path / name, f"/{name}/config.yaml", documents=documents)

    (_, one), (follows, two), (is_back, stale) = (replica(name) for name in ("one", "two", "stale"))
    [own] = pins(accepted(A, 1)).servers.values()
    one.change(lambda known: known.having(own))
    is_back.pull()
    one.change(lambda known: known.having(own.rejecting(NOTE, held(A, 2))).with_rejected([A]))
    stale.change(lambda known: known.having(own) if not known.rejected_texts else known)
    follows.pull()
    for file in (one, two, stale):
        known = file.load()
        assert known.rejected_texts == (A,)
        assert not known.servers["up", "w"].accepted
