"""The end of a gateway process, and of its clients, while calls are in flight: calls, children and exit codes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.test_process import UPSTREAM, entry, names
from tests.support.process import GatewayProcess, environment, is_alive, running_gateway, serve_alone, write_settings
from tests.support.raw import HandshakeSession, post_modern
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LAUNCHER = '"$@"; exit $?'
"""A shell that starts the server as its child and waits for it, as npx does."""


def launched(*arguments: str, **extra: Any) -> dict[str, Any]:
    """An upstream that is the gateway's grandchild."""
    return {"command": "sh", "args": ["-c", LAUNCHER, "sh", sys.executable, str(UPSTREAM), *arguments], **extra}


class Traces:
    """The files by which a test sees what happens in an upstream."""

    def __init__(self, folder: Path) -> None:
        self.started = folder / "started"
        self._pids, self._cancelled = folder / "pids", folder / "cancelled"
        self.arguments = ("--spawned", str(self._pids), "--cancelled", str(self._cancelled))

    def slow(self, seconds: float) -> dict[str, Any]:
        return {"name": "up__slow", "arguments": {"seconds": seconds, "started": str(self.started)}}

    def was_cancelled(self) -> bool:
        return self._cancelled.exists()

    def pids(self) -> list[int]:
        return [int(line) for line in self._pids.read_text().split()] if self._pids.exists() else []

    def are_gone(self) -> bool:
        return not any(is_alive(pid) for pid in self.pids())


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    found = Traces(tmp_path)
    yield found
    for pid in found.pids():
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def calling(url: str, params: dict[str, Any], answers: list[Any]) -> Iterator[threading.Thread]:
    """A stateless call in a thread; what it ended with is put into `answers`."""

    def call() -> None:
        try:
            answers.append(post_modern(url, "tools/call", params, timeout=60).text)
        except httpx2.HTTPError as error:
            answers.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    yield caller
    caller.join(60)
    assert not caller.is_alive()


class StdioGateway:
    """A gateway over stdio, spoken to line by line."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        write_settings(home, settings)
        self.process = subprocess.Popen(
            serve_alone("--mode", "full_proxy"),
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        self.send("initialize", about, 0)
        self.answer(0)
        self.send("notifications/initialized")
        numbers = itertools.count(100)
        wait_for(lambda: self._lists("up__slow", next(numbers)), "the upstream's tools")

    def send(self, method: str, params: dict[str, Any] | None = None, number: int | None = None) -> None:
        assert self.process.stdin is not None
        identified = {} if number is None else {"id": number}
        message = {"jsonrpc": "2.0", **identified, "method": method, "params": params or {}}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a request; what else arrives before it is skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return message
        raise AssertionError("the gateway ended instead of answering")

    def _lists(self, name: str, number: int) -> bool:
        self.send("tools/list", {}, number)
        return name in [tool["name"] for tool in self.answer(number)["result"]["tools"]]

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def stdio_gateway(home: Path, settings: dict[str, Any]) -> Iterator[StdioGateway]:
    gateway = StdioGateway(home, settings)
    try:
        yield gateway
    finally:
        gateway.process.kill()
        gateway.process.wait(10)
        for pipe in (gateway.process.stdin, gateway.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def ended_with(process: subprocess.Popen[str]) -> int:
    return process.wait(40)


@pytest.mark.parametrize("make", [entry, launched])
def test_sigterm_over_http_cancels_upstream_what_takes_too_long(tmp_path: Path, traces: Traces, make: Any) -> None:
    settings = {"servers": {"up": make(*traces.arguments)}, "http": {"shutdown_seconds": 7}}
    answers: list[Any] = []
    with running_gateway(tmp_path / "home", settings) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        with calling(gateway.url, traces.slow(600), answers):
            wait_for(traces.started.exists, "the call is in flight")
            assert gateway.stop() == 0
    assert traces.was_cancelled()
    assert len(answers) == 1, "the client is not left waiting"
    wait_for(traces.are_gone, "children are gone")


def test_sigterm_cancels_what_takes_too_long_at_a_server_over_http(tmp_path: Path, traces: Traces) -> None:
    url_file, answers = tmp_path / "url", list[Any]()
    upstream = subprocess.Popen([sys.executable, str(UPSTREAM), "--http", str(url_file), *traces.arguments])
    try:
        wait_for(url_file.exists, "the server listens")
        settings = {"servers": {"up": {"url": url_file.read_text()}}, "http": {"shutdown_seconds": 7}}
        with running_gateway(tmp_path / "home", settings) as gateway:
            wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
            with calling(gateway.url, traces.slow(600), answers):
                wait_for(traces.started.exists, "the call is in flight")
                assert gateway.stop() == 0
        wait_for(traces.was_cancelled, "the server hears of it")
    finally:
        upstream.kill()
        upstream.wait(10)


def test_sigterm_over_http_ends_a_launched_server_that_will_not_leave(tmp_path: Path, traces: Traces) -> None:
    settings = {"servers": {"up": launched("--stubborn", *traces.arguments)}, "http": {"shutdown_seconds": 7}}
    with running_gateway(tmp_path / "home", settings) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        assert gateway.stop() == 0
    wait_for(traces.are_gone, "children are gone")


@pytest.mark.parametrize("make", [entry, launched])
def test_sigterm_over_stdio_cancels_upstream_what_takes_too_long(tmp_path: Path, traces: Traces, make: Any) -> None:
    with stdio_gateway(tmp_path / "home", {"servers": {"up": make(*traces.arguments)}}) as gateway:
        gateway.send("tools/call", traces.slow(600), 1)
        wait_for(traces.started.exists, "the call is in flight")
        gateway.process.send_signal(signal.SIGTERM)
        assert ended_with(gateway.process) == 0
    assert traces.was_cancelled()
    wait_for(traces.are_gone, "children are gone")


def test_sigterm_over_stdio_lets_a_call_finish(tmp_path: Path, traces: Traces) -> None:
    with stdio_gateway(tmp_path / "home", {"servers": {"up": entry(*traces.arguments)}}) as gateway:
        gateway.send("tools/call", traces.slow(1.5), 1)
        wait_for(traces.started.exists, "the call is in flight")
        gateway.process.send_signal(signal.SIGTERM)
        message = gateway.answer(1)
        assert message["result"]["content"][0]["text"] == "slept"
        assert ended_with(gateway.process) == 0
    wait_for(traces.are_gone, "children are gone")


def test_a_stdio_client_that_leaves_during_a_call_ends_the_gateway_and_the_call(tmp_path: Path, traces: Traces) -> None:
    with stdio_gateway(tmp_path / "home", {"servers": {"up": launched(*traces.arguments)}}) as gateway:
        gateway.send("tools/call", traces.slow(600), 1)
        wait_for(traces.started.exists, "the call is in flight")
        gateway.leave()
        assert ended_with(gateway.process) == 0
    assert traces.was_cancelled()
    wait_for(traces.are_gone, "children are gone")


def test_a_stateless_client_that_leaves_during_a_call_cancels_it_upstream(tmp_path: Path, traces: Traces) -> None:
    with running_gateway(tmp_path / "home", {"servers": {"up": entry(*traces.arguments)}}) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        leave_during_call(gateway, traces)
        wait_for(traces.was_cancelled, "the upstream hears of it")
        assert "up__slow" in names(gateway.url), "the gateway serves on"
        assert gateway.stop() == 0


def leave_during_call(gateway: GatewayProcess, traces: Traces) -> None:
    code = (
        "import sys; from tests.support.raw import post_modern; import json; "
        "post_modern(sys.argv[1], 'tools/call', json.loads(sys.argv[2]), timeout=600)"
    )
    leaving = subprocess.Popen(
        [sys.executable, "-c", code, gateway.url, json.dumps(traces.slow(600))],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
    wait_for(traces.started.exists, "the call is in flight")
    leaving.kill()
    leaving.wait(10)


def test_a_handshake_client_may_cancel_a_call_upstream(tmp_path: Path, traces: Traces) -> None:
    settings = {"servers": {"up": entry(*traces.arguments)}}
    with running_gateway(tmp_path / "home", settings) as gateway, HandshakeSession(gateway.url) as session:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        caller = threading.Thread(target=lambda: session.send("tools/call", traces.slow(600)))
        caller.start()
        wait_for(traces.started.exists, "the call is in flight")
        session.notify("notifications/cancelled", {"requestId": session.last_id, "reason": "no longer needed"})
        wait_for(traces.was_cancelled, "the upstream hears of it")
        caller.join(30)
        assert not caller.is_alive()


def test_a_second_sigterm_ends_the_gateway_at_once_and_its_children_soon(tmp_path: Path, traces: Traces) -> None:
    settings = {"servers": {"up": launched("--stubborn", *traces.arguments)}, "http": {"shutdown_seconds": 3600}}
    answers: list[Any] = []
    with running_gateway(tmp_path / "home", settings) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        with calling(gateway.url, traces.slow(600), answers):
            wait_for(traces.started.exists, "the call is in flight")
            gateway.process.send_signal(signal.SIGTERM)
            wait_for(lambda: any("finishing calls" in line for line in gateway.log), "the first signal is heard")
            assert gateway.stop() == -signal.SIGTERM
    wait_for(traces.are_gone, "children are gone")


def test_a_second_signal_ends_the_gateway_at_once_also_while_it_waits_for_servers(
    tmp_path: Path, traces: Traces
) -> None:
    settings = {"servers": {"up": launched("--stubborn", *traces.arguments)}}
    with running_gateway(tmp_path / "home", settings) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        gateway.process.send_signal(signal.SIGINT)
        wait_for(lambda: any("waiting for up to end" in line for line in gateway.log), "the server is waited for")
        assert gateway.stop(signal.SIGINT) == -signal.SIGINT
    wait_for(traces.are_gone, "children are gone")


def test_a_stop_ends_the_streams_that_clients_listen_on_in_order(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "home", {"servers": {"up": entry()}}) as gateway:
        session = HandshakeSession(gateway.url)
        with httpx2.stream("GET", gateway.url, headers=session.headers, timeout=30) as stream:
            assert stream.status_code == 200
            assert gateway.stop(signal.SIGINT) == 0
            assert [line for line in stream.iter_lines() if line.startswith("data")] == []
        session.close()
    assert [line for line in gateway.log if "in flight" in line or "ERROR" in line] == []


def test_requests_are_served_for_a_while_after_sigterm_each_on_a_connection_that_ends(tmp_path: Path) -> None:
    settings = {"servers": {"up": entry()}, "http": {"drain_seconds": 20}}
    with running_gateway(tmp_path / "home", settings) as gateway, httpx2.Client() as client:
        readiness = gateway.url.replace("/mcp", "/readyz")
        wait_for(lambda: client.get(readiness).status_code == 200, "it is ready")
        gateway.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get(readiness).status_code == 503, "it says that it ends")
        answer = post_modern(gateway.url, "tools/list", client=client)
        gateway.process.send_signal(signal.SIGTERM)
    assert "result" in answer.json()
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("arguments", [(), ("--stubborn",)])
def test_children_do_not_outlive_a_gateway_that_is_killed(
    tmp_path: Path, traces: Traces, arguments: tuple[str, ...]
) -> None:
    servers = {"up": launched(*arguments, *traces.arguments)}
    with running_gateway(tmp_path / "home", {"servers": servers}) as gateway:
        wait_for(lambda: "up__slow" in names(gateway.url), "the upstream's tools")
        gateway.process.kill()
        gateway.process.wait(10)
    wait_for(traces.are_gone, "children are gone")


def test_a_command_that_is_told_twice_to_end_leaves_no_child_behind(tmp_path: Path, traces: Traces) -> None:
    servers = {"up": launched("--stubborn", *traces.arguments)}
    # Else the servers are those of the gateway that clients share, which goes on.
    write_settings(tmp_path, {"servers": servers, "local": {"attach": False}})
    with subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "upstreams", "--probe"],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        wait_for(lambda: bool(traces.pids()), "the server runs")
        for _ in range(2):
            command.send_signal(signal.SIGINT)
        command.wait(30)
    wait_for(traces.are_gone, "children are gone")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_its_children(
    tmp_path: Path, traces: Traces, sent: signal.Signals, code: int
) -> None:
    servers = {"up": launched("--stubborn", *traces.arguments)}
    # Else the servers are those of the gateway that clients share, which goes on.
    write_settings(tmp_path, {"servers": servers, "local": {"attach": False}})
    with subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "upstreams", "--probe"],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        wait_for(lambda: bool(traces.pids()), "the server runs")
        command.send_signal(sent)
        assert command.wait(30) == code
    wait_for(traces.are_gone, "children are gone")
