"""What the log is told of servers that fail, and when those are tried again that only their owner can put right."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.settings import Settings
from pml_gateway.errors import UpstreamUnavailableError, UpstreamUnusableError
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.upstreams import connector, faults
from pml_gateway.upstreams.faults import FIRST_SILENCE, MAX_REASONS, STABLE_AFTER, Faults
from tests.support import fake_npx
from tests.support.memory import MemoryStreams, paths_in
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

HOUR = 3600.0


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def down(reason: str = "no answer") -> UpstreamUnavailableError:
    return UpstreamUnavailableError(f"up: {reason}")


def test_a_reason_is_told_once_and_rarely_again() -> None:
    clock = Clock()
    faults = Faults(clock)
    told = 0
    for _ in range(24 * 60):  # a day, an attempt a minute
        told += faults.is_news(down(f"HTTP 503 of process {clock.now:.0f}"))
        clock.now += 60
    assert 5 <= told <= 9
    assert faults.is_news(down("another reason"))


@given(st.lists(st.text(max_size=2), min_size=18, max_size=30))
def test_reasons_that_change_each_time_fill_no_log(reasons: list[str]) -> None:
    faults = Faults(Clock())
    assert sum(faults.is_news(down(reason)) for reason in reasons) <= MAX_REASONS + 1


def test_the_next_outage_is_told_and_flapping_is_not() -> None:
    clock = Clock()
    faults = Faults(clock)
    assert faults.is_news(down())
    assert faults.answered()
    clock.now += STABLE_AFTER
    assert faults.is_news(down()), "it was there meanwhile"
    for _ in range(100):
        faults.answered()
        clock.now += STABLE_AFTER / 2
        assert not faults.is_news(down())
    assert not faults.answered(), "nobody was told of its loss"
    clock.now += FIRST_SILENCE


@pytest.mark.anyio
async def test_four_dead_servers_are_told_of_four_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faults, "FIRST_BACKOFF", 0.001)
    monkeypatch.setattr(faults, "LAST_BACKOFF", 0.001)
    caplog.set_level(logging.WARNING, "pml_gateway")
    refusing = {name: ScriptedServer(refuse=True) for name in ("one", "two")}
    servers = {
        "one": {"command": "in-memory"},
        "two": {"command": "in-memory"},
        "missing": {"command": "no-such-command-at-all"},
        "unset": {"command": "sh", "env": {"A": "${env:PML_TEST_MISSING}"}},
    }
    settings = Settings.model_validate({"servers": servers})
    streams = MemoryStreams(refusing)
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await until(lambda: all(server.opened > 15 for server in refusing.values()))
        await until(lambda: all(upstream.connector.settled.is_set() for upstream in gateway.pool.upstreams.values()))
        told = [record.message for record in caplog.records if "next attempt" in record.message]
        assert sorted(line.split(":")[0] for line in told) == ["missing", "one", "two", "unset"]
        unset = gateway.pool.upstreams["unset"]
        with pytest.raises(UpstreamUnusableError, match="PML_TEST_MISSING"), anyio.fail_after(30):
            await unset.request("tools/call", {"name": "t"})
        assert unset.breaker.retry_after > HOUR / 10


@pytest.mark.anyio
async def test_a_server_that_answers_again_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faults, "FIRST_BACKOFF", 0.001)
    caplog.set_level(logging.INFO, "pml_gateway")
    server = ScriptedServer([tool("t")], refuse=True)
    settings = Settings.model_validate({"servers": {"up": {"command": "in-memory"}}})
    streams = MemoryStreams({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams):
        await until(lambda: "next attempt" in caplog.text)
        server.refuse = False
        await until(lambda: "up: answers again" in caplog.text)


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["command", "variable"])
async def test_what_only_its_owner_can_put_right_is_tried_again_when_that_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(connector, "SURROUNDINGS_SECONDS", 0.02)
    fake_npx.let_finish(tmp_path)
    environ: dict[str, Any] = {"FAKE_NPX": str(tmp_path), "PATH": str(tmp_path / "bin")}
    entry: dict[str, Any] = {"command": "late", "env": environ, "args": ["server"]}
    if what == "variable":
        entry["env"] = {**environ, "A": f"${{file:{tmp_path}/secret}}"}
        entry |= {"command": sys.executable, "args": ["-I", "-S", fake_npx.__file__, "server"]}
    settings = Settings.model_validate({"servers": {"up": entry}})
    async with open_gateway(settings, paths_in(tmp_path / "home"), identity="t") as gateway:
        upstream = gateway.pool.upstreams["up"]
        with anyio.fail_after(30):
            await upstream.connector.settled.wait()
        assert isinstance(upstream.connector.last_error, UpstreamUnusableError)
        if what == "variable":
            (tmp_path / "secret").write_text("value", encoding="utf-8")
        else:
            fake_npx.runner_in(tmp_path, "late")
        await until(lambda: upstream.connector.last_error is None and upstream.last_listed is not None)
