"""What the fuzz run demands of a gateway, and that it would notice."""

from __future__ import annotations

import argparse
import asyncio
import json
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.fuzz.inputs import Inputs, Request, opening
from benchmarks.fuzz.vault import answer, path_of
from benchmarks.fuzz.wire import Reply
from benchmarks.run_fuzz import Seen, check_requests, judge, requests

TOKEN = b"0123456789abcdef"


def faults(request: Request, reply: Reply) -> list[str]:
    seen = Seen()
    judge(request, reply, TOKEN, seen)
    return list(seen.faults)


def test_the_same_seed_gives_the_same_requests_and_another_gives_others() -> None:
    def first(seed: int) -> list[Request]:
        inputs = Inputs(seed)
        return [inputs.next("session") for _ in range(200)]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_most_requests_are_sound_in_their_outer_form() -> None:
    inputs = Inputs(1)
    sound = 0
    for request in islice(iter(inputs.next, None), 1000):
        try:
            message = json.loads(request.body)
        except ValueError:
            continue
        sound += isinstance(message, dict) and {"jsonrpc", "id", "method", "params"} <= message.keys()
    assert sound > 600


def test_what_is_told_let_in_or_broken_is_noticed() -> None:
    plain = opening()
    assert faults(plain, Reply(200, b"fine")) == []
    assert faults(plain, Reply(503, b"busy")) == []
    assert faults(plain, Reply(200, b"it is " + TOKEN)) == ["told what is denied"]
    assert faults(plain, Reply(500, b"Traceback")) == ["server error", "traceback in an answer"]
    assert faults(plain, Reply(0)) == ["closed without an answer"]
    foreign = Request(b"", {"host": "localhost:evil.com"})
    assert faults(foreign, Reply(421)) == []
    assert faults(foreign, Reply(200)) == ["foreign host or origin let in"]


def test_tracebacks_growth_and_missing_answers_are_noticed() -> None:
    seen = Seen(rss_mib=[100.0, 100.0, 130.0])
    judge(opening(), Reply(200), TOKEN, seen)
    checks = check_requests(seen, "Traceback (most recent call last):\n", expected=2)
    assert [check.what for check in checks if not check.holds] == [
        "every request was answered",
        "no traceback in the log",
        "memory does not grow",
    ]


@pytest.mark.parametrize(
    "uri",
    ["file:///srv/private/x", "file:/srv/private/x", "FILE://a/srv/%2570rivate/x", "file:///srv/public/..\\private/x"],
)
def test_the_vault_opens_to_every_spelling(uri: str) -> None:
    assert path_of(uri) == "/srv/private/x"
    assert answer("resources/read", {"uri": uri}, "token")["contents"][0]["text"] == "token"


@pytest.mark.heavy
@pytest.mark.timeout(600)  # 30,000 requests, beside other tests
def test_nothing_gets_past_a_gateway_and_nothing_brings_it_down(tmp_path: Path) -> None:
    arguments = argparse.Namespace(requests=30_000, connections=8, seed=20)
    log = tmp_path / "gateway.log"
    seen, _ = asyncio.run(requests(arguments, log))
    assert not seen.faults
    checks = check_requests(seen, log.read_text(encoding="utf-8", errors="replace"), arguments.requests)
    assert not [check for check in checks if not check.holds]
    assert seen.statuses[200] > 5_000
