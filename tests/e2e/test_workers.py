"""`pml serve --http --workers`: real processes that share one port and a Redis server of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.process import GatewayProcess, is_alive, run_pml, running_gateway, write_settings
from tests.support.raw import HandshakeSession, decoded, post_modern, result_modern
from tests.support.skipping import unavailable
from tests.support.waiting import wait_for

from .install import InstallationError, install_redis

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

SERVER = """
import os, time
from fastmcp import FastMCP
server = FastMCP("data")
@server.tool
def echo(text: str) -> str:
    "Return the text."
    return text
@server.tool
def wait(seconds: float) -> str:
    "Wait, then say so."
    time.sleep(seconds)
    return "waited"
@server.tool
def rows(count: int) -> list[dict]:
    "Return rows."
    return [{"number": number, "text": f"row {number}"} for number in range(count)]
server.run(show_banner=False)
"""


@pytest.fixture(scope="module", autouse=True)
def redis_folder() -> str:
    try:
        return str(install_redis().parent)
    except InstallationError as exc:
        unavailable(exc)


@contextmanager
def workers(
    folder: Path, redis_folder: str, count: int = 2, http: dict[str, Any] | None = None
) -> Iterator[GatewayProcess]:
    """A gateway of several processes, all of which are ready."""
    script = folder / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    settings = {
        "servers": {"data": {"command": sys.executable, "args": [str(script)]}},
        "http": http or {},
        "gateway": {"tools_exposure": "full_proxy"},
    }
    path = f"{redis_folder}{os.pathsep}{os.environ['PATH']}"
    with running_gateway(folder / "home", settings, "--workers", str(count), extra={"PATH": path}) as gateway:
        wait_for(lambda: ready(gateway) == count, "all workers are ready")
        yield gateway


def ready(gateway: GatewayProcess) -> int:
    """How often a worker has become ready."""
    return sum("is ready" in line for line in [*gateway.log])


def descendants(pid: int) -> set[int]:
    """Process ids of everything below a process."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(each.parent.name))
    found, new = set(), [pid]
    while new:
        new = [child for each in new for child in parents.get(each, ())]
        found |= {*new}
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def worker_pids(gateway: GatewayProcess) -> list[int]:
    """Process ids of the workers, in the order of their numbers."""
    found = {}
    for pid in descendants(gateway.process.pid):
        if match := re.search(r"--worker (\d+):", command_of(pid)):
            found[int(match[1])] = pid
    return [found[number] for number in sorted(found)]


def redis_pid(gateway: GatewayProcess) -> int:
    (found,) = [pid for pid in descendants(gateway.process.pid) if re.search("(redis|valkey)-server", command_of(pid))]
    return found


def echo_modern(url: str, text: str, client: httpx2.Client | None = None) -> str:
    params = {"name": "data__echo", "arguments": {"text": text}}
    content = decoded(post_modern(url, "tools/call", params, client=client))["result"]["content"]
    found: str = content[0]["text"]
    return found


def echo_handshake(session: HandshakeSession, text: str) -> str:
    answer = decoded(session.send("tools/call", {"name": "data__echo", "arguments": {"text": text}}))
    found: str = answer["result"]["content"][0]["text"]
    return found


class Load:
    """Clients of both eras that call without a pause, each in a thread; every answer is checked."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self.done = 0
        self.failed: list[str] = []
        self.wrong: list[str] = []
        kinds: list[Callable[[int], None]] = [self._modern, self._handshake]
        self._threads = [threading.Thread(target=kinds[each % 2], args=(each,)) for each in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _modern(self, number: int) -> None:
        with httpx2.Client(timeout=30) as client:
            count = 0
            while not self._stop.is_set():
                count += 1
                text = f"{number}-{count}"
                self._note(text, partial(echo_modern, self._url, text, client))

    def _handshake(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            try:
                session = HandshakeSession(self._url)
            except (httpx2.HTTPError, KeyError, ValueError) as error:
                self.failed.append(f"initialize: {error!r}")
                continue
            alive = True
            while alive and not self._stop.is_set():
                count += 1
                text = f"{number}-{count}"
                alive = self._note(text, partial(echo_handshake, session, text))
            session.close()

    def _note(self, expected: str, call: Callable[[], str]) -> bool:
        try:
            answer = call()
        except (httpx2.HTTPError, KeyError, ValueError) as error:
            self.failed.append(repr(error))
            return False
        if answer != expected:
            self.wrong.append(f"{expected}: {answer}")
            # An error of a call is text as well.
            return False
        self.done += 1
        return True


def test_many_clients_of_both_eras_are_served_by_both_workers(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        with Load(gateway.url, 16) as load:
            wait_for(lambda: load.done > 1500, "calls are answered")
        assert (load.failed, load.wrong) == ([], [])
        connected = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in worker_pids(gateway)]
        assert min(connected) > 0
        status = json.loads(run_pml(gateway.home, "status", "--json").stdout)
    assert sorted(each["pid"] for each in status["gateways"]) != []
    assert {each["url"] for each in status["gateways"]} == {gateway.url}
    assert len(status["gateways"]) == 2


def test_a_session_and_a_reference_are_found_over_every_new_connection(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway, ExitStack() as stack:
        sessions = [stack.enter_context(HandshakeSession(gateway.url)) for _ in range(6)]
        for turn in range(5):
            for number, session in enumerate(sessions):
                with httpx2.Client(timeout=30) as client:
                    body = {
                        "jsonrpc": "2.0",
                        "id": 100 + turn,
                        "method": "tools/call",
                        "params": {"name": "data__echo", "arguments": {"text": f"{turn}-{number}"}},
                    }
                    answer = decoded(client.post(gateway.url, content=json.dumps(body), headers=session.headers))
                assert answer["result"]["content"][0]["text"] == f"{turn}-{number}"


def test_a_worker_that_is_killed_takes_only_its_own_with_it(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        one, two = worker_pids(gateway)
        with Load(gateway.url, 12) as load:
            wait_for(lambda: load.done > 300, "calls are answered")
            os.kill(one, signal.SIGKILL)
            for number in range(20):
                with HandshakeSession(gateway.url) as session:
                    assert echo_handshake(session, f"new {number}") == f"new {number}"
                assert echo_modern(gateway.url, f"new {number}") == f"new {number}"
            wait_for(lambda: ready(gateway) == 3, "the worker is started again")
            before = load.done
            wait_for(lambda: load.done > before + 300, "calls go on")
            failed = len(load.failed)
        again, same = worker_pids(gateway)
        assert same == two
        assert again != one
        assert load.wrong == []
        # Those that were under way at the worker, and sessions that it had.
        assert failed <= 12
        assert any("worker 1 ended (signal 9)" in line for line in gateway.log)


def test_a_signal_ends_all_once_calls_are_answered_and_leaves_nothing(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        everything = descendants(gateway.process.pid)
        assert len(everything) >= 5
        answers: list[Any] = []

        def call() -> None:
            params = {"name": "data__wait", "arguments": {"seconds": 2}}
            answers.append(result_modern(gateway.url, "tools/call", params)["content"][0]["text"])

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: "data" in json.dumps(json.loads(run_pml(gateway.home, "status", "--json").stdout)), "status")
        gateway.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert gateway.process.wait(30) == 0
        assert answers == ["waited"] * 4
        wait_for(lambda: not any(map(is_alive, everything)), "everything has ended")
        assert [each.name for each in (gateway.home / "run").iterdir() if not each.name.startswith(".")] == []


def test_nothing_outlives_a_gateway_that_is_killed(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        everything = descendants(gateway.process.pid)
        gateway.process.kill()
        gateway.process.wait(10)
        wait_for(lambda: not any(map(is_alive, everything)), "everything has ended")


def test_clients_that_send_nothing_or_half_a_request_hold_nobody_up(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder, http={"header_seconds": 5}) as gateway, ExitStack() as stack:
        host, port = httpx2.URL(gateway.url).host, httpx2.URL(gateway.url).port
        for number in range(600):
            silent = stack.enter_context(socket.create_connection((host, port or 0), 10))
            silent.sendall((b"", b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nx: " + b"y" * 10_000)[number % 3])
        for number in range(50):
            assert echo_modern(gateway.url, f"beside {number}") == f"beside {number}"
        with HandshakeSession(gateway.url) as session:
            session.headers["x-long"] = "y" * 10_000
            assert echo_handshake(session, "long") == "long"


def test_the_accepting_process_keeps_nothing_of_connections_that_have_ended(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        files = Path(f"/proc/{gateway.process.pid}/fd")

        def opened() -> int:
            return len(list(files.iterdir()))

        before, (host, port) = opened(), (httpx2.URL(gateway.url).host, httpx2.URL(gateway.url).port)
        for number in range(2000):
            with socket.create_connection((host, port or 0), 10) as connection:
                if number % 4:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                if number % 2:
                    assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_for(lambda: opened() <= before, "its files are closed")
        assert echo_modern(gateway.url, "after") == "after"


def test_a_limit_of_connections_holds_for_all_workers_together(tmp_path: Path, redis_folder: str) -> None:
    with (
        workers(tmp_path, redis_folder, http={"max_connections_per_address": 10}) as gateway,
        ExitStack() as stack,
    ):
        host, port = httpx2.URL(gateway.url).host, httpx2.URL(gateway.url).port
        waiting = [stack.enter_context(socket.create_connection((host, port or 0), 10)) for _ in range(10)]
        for each in waiting:
            each.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert each.recv(15) == b"HTTP/1.1 200 OK"
        for number in range(5):
            with socket.create_connection((host, port or 0), 10) as more:
                more.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                # The oldest of the address that waits gives way.
                assert more.recv(15) == b"HTTP/1.1 200 OK", number

        def ended() -> int:
            return sum(has_ended(each) for each in waiting)

        wait_for(lambda: ended() >= 1, "connections gave way")


def has_ended(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        while connection.recv(4096):
            continue
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_redis_that_dies_is_started_again_and_calls_go_on(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway, HandshakeSession(gateway.url) as session:
        before = redis_pid(gateway)
        os.kill(before, signal.SIGKILL)
        for number in range(20):
            assert echo_modern(gateway.url, f"without {number}") == f"without {number}"
            assert echo_handshake(session, f"without {number}") == f"without {number}"

        def is_back() -> bool:
            try:
                return redis_pid(gateway) != before
            except ValueError:
                return False

        wait_for(is_back, "Redis runs again")
        assert any("Redis server of the workers ended" in line for line in gateway.log)


def test_metrics_are_those_of_all_workers(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder, http={"metrics": True}) as gateway:
        for number in range(6):
            # Each over a connection of its own, by turns.
            assert echo_modern(gateway.url, f"{number}") == f"{number}"
        page = httpx2.get(gateway.url.replace("/mcp", "/metrics"), timeout=30).text
        found = re.findall(r'pml_requests_total\{.*method="tools/call".*worker="(\d)".*\} (\S+)', page)
        assert sorted(number for number, _ in found) == ["1", "2"]
        assert sum(float(count) for _, count in found) == 6
        assert page.count("# TYPE pml_requests_total counter") == 1


def test_the_console_is_one_whichever_worker_is_asked(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder, http={"console": True}) as gateway:
        link = re.search(r"http://\S+", run_pml(gateway.home, "console", "--no-open").stdout)
        assert link is not None
        with httpx2.Client(timeout=30, follow_redirects=True) as browser:
            page = browser.get(link[0])
            assert page.status_code == 200
            cookies = browser.cookies
        for _ in range(6):
            with httpx2.Client(timeout=30, cookies=cookies) as browser:
                again = browser.get(page.url)
                assert (again.status_code, "data" in again.text) == (200, True)


def test_an_address_for_one_process_is_said_not_to_be_used(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder, http={"advertise": "http://10.0.0.5:8765"}) as gateway:
        assert any("http.advertise (http://10.0.0.5:8765) is not used" in line for line in [*gateway.log])


def test_a_hangup_reaches_every_worker(tmp_path: Path, redis_folder: str) -> None:
    with workers(tmp_path, redis_folder) as gateway:
        gateway.process.send_signal(signal.SIGHUP)

        def heard() -> set[str]:
            lines = [line for line in [*gateway.log] if "SIGHUP" in line]
            return {match[1] for line in lines if (match := re.search(r"worker=(\d+)", line))}

        wait_for(lambda: heard() == {"1", "2"}, "both workers have heard it")
        assert echo_modern(gateway.url, "after") == "after"


def test_what_cannot_be_served_ends_the_gateway_with_the_reason(tmp_path: Path, redis_folder: str) -> None:
    write_settings(tmp_path, {"servers": {"x": {"command": "x"}}, "http": {"port": 0}})
    done = run_pml(tmp_path, "serve", "--http", "--workers", "2", extra={"PATH": "/nowhere"})
    assert done.returncode == 78
    assert "redis-server" in done.stderr
    assert "apt install" in done.stderr
