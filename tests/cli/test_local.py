"""`pml up`, `pml down`, `pml restart` and what `pml status` shows of the gateway that a machine's clients share."""

from __future__ import annotations

import _thread
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pml_gateway import __version__
from pml_gateway.cli import local as local_command
from pml_gateway.cli import status as status_command
from pml_gateway.local import commands
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.entry import gateway_command
from pml_gateway.local.machine import STARTS
from pml_gateway.local.starting import reach
from pml_gateway.local.status import OTHERS
from pml_gateway.owner import operations
from pml_gateway.serve.reload import APPLIED
from pml_gateway.types import JsonObject
from tests.local.bridged import Bridged
from tests.support.command_line import home_of, pml, run_here
from tests.support.golden import check_golden
from tests.support.listening import free_port
from tests.support.process import SERVE, environment, is_alive
from tests.support.scripted_machine import STATUS, scripted_machine
from tests.support.service_managers import asked, managers_in

SERVERS = {"servers": {"files": {"command": "no-such-command-of-pml"}}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with home_of(tmp_path, SERVERS) as home, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PML_LOCAL__ATTACH")
        yield home


def answer(*words: str, code: int = 0) -> Any:
    return json.loads(pml(*words, "--json", code=code).stdout)


def client(home: Path, **values: object) -> JsonObject:
    told = {
        "name": "claude-code",
        "pid": 101,
        "folder": str(home.parent / "work"),
        "mode": "meta_only",
        "calls": 1234,
        "memory_bytes": 10_000_000,
        "since_seconds": 60.0,
    }
    return {**told, **values}


def busy(home: Path) -> JsonObject:
    """A gateway with clients in two projects, one of them far down, and servers of every kind."""
    far = "/srv/projects/of/the/whole/company/backend/services/payment"
    everybody = {"pid": 1001, "memory_bytes": 61_000_000, "clients": 2, "for": "everybody", "why": ""}
    one, several = (
        {**everybody, "clients": 1},
        "client claude-code 2.1.330 (101), cursor 1.10 (102), zed 0.2 (103) and 4 more",
    )
    return {
        **STATUS,
        "started_by": "up",
        "url": "http://127.0.0.1:8765/mcp",
        "http_clients": 1,
        "clients": [client(home), client(home, name="cursor-nightly-20270101", pid=102, folder=far)],
        "servers": [
            {"server": "calc", "processes": [everybody], "state": "ready", "calls": 17, "clients": 2},
            {
                "server": "playwright",
                "processes": [
                    {**one, "pid": 1002, "for": "client claude-code (101)", "why": "sessions: per_client"},
                    {**one, "pid": 1003, "for": "client cursor (102)", "why": "sessions: per_client"},
                ],
                "state": "ready",
                "calls": 1217,
                "clients": 2,
            },
            {
                "server": "lint",
                "processes": [{**one, "pid": 1004, "for": f"folder {far}", "why": "its argument ./rules"}],
                "state": "not_running",
                "calls": 0,
                "clients": 0,
            },
            {
                "server": "github",
                "processes": [{**one, "pid": 1005, "for": several, "why": OTHERS}],
                "state": "ready",
                "calls": 3,
                "clients": 7,
                "failed_clients": 2,
            },
        ],
    }


def test_up_says_where_one_runs_and_keeps_it_from_ending_by_itself(home: Path) -> None:
    with scripted_machine(home, {"status": STATUS, "keep": {"kept": True}}) as machine:
        told = answer("up")
        assert told == {"pid": 4711, "version": "0.1.0", "url": None, "log": machine.endpoint.log, "started": False}
        assert {"command": "keep"} in machine.asked
        shown = pml("up")
        assert "runs already, for 3 min: process 4711" in shown.stdout
        assert machine.endpoint.log in shown.stderr


def test_up_says_where_a_running_one_now_listens_and_that_it_stays(home: Path) -> None:
    listening = {**STATUS, "url": "http://127.0.0.1:9000/mcp"}
    with scripted_machine(home, {"status": listening, "keep": {}, "http": {"url": listening["url"]}}):
        shown = " ".join(pml("up", "--http").stdout.split())
        assert "it now listens at http://127.0.0.1:9000/mcp and stays until pml down" in shown
        assert "it stays until pml down" in " ".join(pml("up").stdout.split())


def test_a_restart_starts_no_gateway_where_none_runs(home: Path) -> None:
    shown = " ".join(pml("restart").stderr.split())
    assert "no gateway of this machine runs; the next client starts one, or: pml up" in shown
    told = answer("restart")
    assert (told["pid"], told["started"], answer("status")["machine"]) == (None, False, None)


@pytest.mark.parametrize("word", ["up", "restart", "down"])
def test_a_folder_of_sockets_that_is_open_to_others_is_closed_and_that_is_said(home: Path, word: str) -> None:
    status = STATUS if word == "up" else {"error": "not now"}
    with scripted_machine(home, {"status": status, "keep": {}, "down": {"ended": True}}):
        (home / "run").chmod(0o750)
        shown = pml(word, code=1 if word == "restart" else 0)
        assert f"{home / 'run'} was open to others (mode 750)" in " ".join(shown.stderr.split())
        assert (home / "run").stat().st_mode & 0o777 == 0o700


def test_up_leaves_one_of_the_service_to_the_service(home: Path) -> None:
    with scripted_machine(home, {"status": {**STATUS, "started_by": "service"}}) as machine:
        pml("up")
        assert {"command": "keep"} not in machine.asked


def test_up_has_it_listen_where_the_settings_or_options_say(home: Path) -> None:
    listening = {**STATUS, "url": "http://127.0.0.1:9000/mcp"}
    with scripted_machine(home, {"status": listening, "keep": {}, "http": {"url": listening["url"]}}) as machine:
        assert answer("up", "--http", "--port", "9000")["url"] == listening["url"]
        (request,) = (each for each in machine.asked if each["command"] == "http")
        assert (request["host"], request["port"]) == (None, 9000)
        assert request["owner"]["environ"]["PML_HOME"] == str(home)
    assert "--http" in pml("up", "--port", "9000", code=2).stderr


def test_a_port_that_is_taken_fails_before_a_gateway_ends_for_it(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with scripted_machine(home, {"status": {**STATUS, "url": "http://127.0.0.1:1/mcp"}}) as machine:
            failed = pml("up", "--foreground", "--http", "--port", str(port), code=1)
            assert machine.asked == [{"command": "status"}]
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in failed.stderr


@pytest.mark.slow
def test_one_that_cannot_listen_is_not_left_behind(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = ("up", "--http", "--port", str(other.getsockname()[1]))
        assert "Address already in use" in pml(*words, code=1).stderr
        assert answer("status")["machine"] is None
        first = answer("up")
        assert "Address already in use" in pml(*words, code=1).stderr
        assert answer("status")["machine"]["pid"] == first["pid"]
    answer("down")


@pytest.mark.slow
def test_a_restart_keeps_the_variables_and_the_folder_for_http(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_GATEWAY__TOOLS_EXPOSURE", "full_proxy")
    first = answer("up", "--http", "--port", str(free_port()))
    monkeypatch.delenv("PML_GATEWAY__TOOLS_EXPOSURE")
    second = answer("restart")
    assert (second["url"], second["pid"] != first["pid"]) == (first["url"], True)
    assert [each["mode"] for each in answer("status")["gateways"]] == ["full_proxy"]
    answer("down")


def test_what_the_gateway_refuses_is_said(home: Path) -> None:
    refusal = {"error": "port 9000 is taken"}
    with scripted_machine(home, {"status": STATUS, "keep": {}, "http": refusal}):
        assert "port 9000 is taken" in pml("up", "--http", code=1).stderr


def test_down_says_what_was_cut_off_and_waits_until_nothing_is_left(home: Path) -> None:
    with scripted_machine(home, {"down": {"ended": True, "unfinished": 2}}) as machine:
        shown = pml("down")
        assert machine.asked == [{"command": "down", "seconds": 60.0}]
        assert machine.endpoint.living() is None
    assert "has ended" in shown.stdout
    assert "killed" not in shown.output
    assert "2 clients had calls that did not finish in 60 s" in shown.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is asked")
def test_one_of_the_service_is_started_anew_by_the_service(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", managers_in(tmp_path / "managers"))
    with scripted_machine(home, {"status": {**STATUS, "started_by": "service"}}) as machine:
        told = answer("restart")
        assert {each["command"] for each in machine.asked} == {"status"}
    assert "systemctl --user restart pml-gateway.service" in asked(tmp_path / "managers")
    assert told["log"] == "journalctl --user -u pml-gateway.service"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is asked")
def test_one_of_the_service_is_waited_for_where_a_client_has_another_one_meanwhile(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", managers_in(tmp_path / "managers"))
    said = iter([("service", 1), ("client", 2), ("service", 3)])

    def status() -> JsonObject:
        started_by, pid = next(said)
        return {**STATUS, "started_by": started_by, "pid": pid}

    with scripted_machine(home, {"status": status}):
        assert answer("restart")["pid"] == 3


@pytest.mark.slow
def test_a_real_one_is_started_replaced_by_one_in_the_foreground_and_ended(home: Path) -> None:
    command = [sys.executable, "-m", "pml_gateway", "up", "--foreground", "--http", "--port", "0"]
    first = answer("up")
    assert (first["started"], first["url"]) == (True, None)
    assert not answer("up")["started"]
    second = answer("restart")
    assert second["pid"] != first["pid"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONWARNINGS": ""}) as process:
        assert wait_until(lambda: (answer("status")["machine"] or {}).get("url"))
        assert answer("status")["machine"]["pid"] == process.pid
        assert answer("down") == {"ended": True, "unfinished": 0, "killed": None}
        assert process.wait(30) == 0
    assert not [*(home / "run").iterdir()]


@pytest.mark.slow
def test_one_that_a_client_started_waits_for_clients_after_a_restart_and_still_ends_by_itself(
    home: Path, tmp_path: Path
) -> None:
    config = str(home / "config.yaml")
    reach(Endpoint.of(home, config), gateway_command(str(home), config), time.monotonic() + 30).close()
    assert commands.ask(Endpoint.of(home, config), operations.STATUS, 30)
    assert answer("status")["machine"]["started_by"] == "client"
    for command in ("upstreams", "refresh"):
        assert "has served no client yet" in pml(command).stderr
    answer("restart")
    assert answer("status")["machine"]["started_by"] == "client"
    answer("down")


WAITING = """
import json, pathlib, sys, time

notes = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    result = {}
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "waiting", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("wait", "hello")]}
        case "tools/call":
            if asked["params"]["name"] == "wait":
                (notes / "waits").touch()
                while not (notes / "done").exists():
                    time.sleep(0.01)
            result = {"content": [{"type": "text", "text": "done"}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def serve_waiting(home: Path) -> None:
    """Have a server with a tool that answers at once, and one that waits until the test has it end."""
    server = {"command": sys.executable, "args": ["-c", WAITING, str(home)]}
    settings = {"servers": {"up": server}, "gateway": {"tools_exposure": "full_proxy"}}
    (home / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")


@contextmanager
def attached(home: Path) -> Iterator[Bridged]:
    """A client over stdio that has introduced itself."""
    with subprocess.Popen(
        SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(home), cwd=home
    ) as process:
        try:
            client = Bridged(home, process)
            client.handshake()
            yield client
        finally:
            process.kill()


def text_of(client: Bridged, number: int) -> str:
    """The answer to a call, whatever else was announced before it."""
    while (message := client.next()).get("id") != number:
        continue
    return str(message["result"]["content"][0]["text"])


def begin(home: Path, *words: str) -> subprocess.Popen[str]:
    """A command that takes longer than what is done beside it."""
    command = [sys.executable, "-m", "pml_gateway", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=home
    )


@pytest.mark.slow
def test_a_restart_ends_the_gateway_that_ran_and_not_the_one_that_a_client_has_meanwhile(home: Path) -> None:
    serve_waiting(home)
    first = answer("up", "--http", "--port", "0")
    with attached(home) as busy, attached(home) as other:
        busy.call(1, "up__wait")
        assert wait_until((home / "waits").exists)
        with begin(home, "restart", "--json") as restart:
            assert wait_until(lambda: (answer("status")["machine"] or first)["pid"] != first["pid"])
            other.call(1, "up__hello")
            assert text_of(other, 1) == "done"
            assert restart.poll() is None, "it waits for the call"
            (home / "done").touch()
            told, errors = restart.communicate(timeout=30)
        assert text_of(busy, 1) == "done"
        assert restart.returncode == 0, told + errors
        machine = answer("status")["machine"]
        assert (json.loads(told)["pid"], machine["started_by"], machine["url"]) == (machine["pid"], "up", first["url"])
    answer("down")


@pytest.mark.slow
def test_while_one_that_ends_has_calls_of_one_client_the_others_are_served_by_the_next(home: Path) -> None:
    serve_waiting(home)
    first = answer("up")
    with attached(home) as busy, attached(home) as other:
        busy.call(1, "up__wait")
        assert wait_until((home / "waits").exists)
        with begin(home, "down") as down:
            assert wait_until(lambda: answer("status")["machine"] is None)
            [ending] = answer("status")["gateways"]
            assert (ending["pid"], ending["is_ending"]) == (first["pid"], True)
            assert "it ends once its calls are done" in " ".join(pml("status").stdout.split())
            other.call(1, "up__hello")
            assert text_of(other, 1) == "done"
            assert down.poll() is None, "it waits for the call"
            (home / "done").touch()
            told, errors = down.communicate(timeout=30)
        assert text_of(busy, 1) == "done"
        assert (down.returncode, "has ended" in told) == (0, True)
        assert not is_alive(first["pid"])
        second = answer("status")["machine"]["pid"]
        assert f"a client has another one by now: process {second}" in errors
    answer("down")


def kill_gateway(home: Path) -> None:
    os.kill(answer("status")["machine"]["pid"], signal.SIGKILL)
    assert wait_until(lambda: Endpoint.of(home, home / "config.yaml").living() is None)


@pytest.mark.slow
def test_what_up_asked_for_is_taken_over_by_the_one_that_a_client_starts_after_a_kill(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_waiting(home)
    monkeypatch.setenv("MY_TOKEN", "of-my-shell")
    first = answer("up", "--http", "--port", str(free_port()))
    [written] = (home / "run").glob("*.up")
    assert (written.stat().st_mode & 0o777, "of-my-shell" in written.read_text()) == (0o600, False)
    kill_gateway(home)
    assert "was killed; pml up, or the next client, starts it again" in " ".join(pml("status").stderr.split())
    with attached(home):
        assert wait_until(lambda: answer("status")["machine"]["url"] == first["url"])
        second = answer("status")["machine"]
        assert (second["started_by"], second["not_listening"]) == ("up", None)
    kill_gateway(home)
    with socket.create_server(("127.0.0.1", urlsplit(first["url"]).port)), attached(home) as client:
        client.call(1, "up__hello")
        assert text_of(client, 1) == "done"
        assert wait_until(lambda: answer("status")["machine"]["not_listening"])
        assert "nothing over HTTP: cannot listen on" in " ".join(pml("status").stdout.split())
    assert answer("restart")["url"] == first["url"]
    answer("down")
    assert not [*(home / "run").iterdir()]


@pytest.mark.slow
def test_up_says_that_the_gateway_before_was_killed_and_listens_where_it_is_asked_to_now(home: Path) -> None:
    serve_waiting(home)
    first = answer("up", "--http", "--port", "0")
    kill_gateway(home)
    done = pml("up", "--http", "--port", "0")
    assert "was killed; this one takes its place" in done.stderr
    assert answer("status")["machine"]["url"] != first["url"]
    assert answer("status")["errors"] == []
    answer("down")


@pytest.mark.slow
def test_down_forgets_what_up_asked_for_also_where_the_gateway_was_killed(home: Path) -> None:
    answer("up")
    kill_gateway(home)
    assert not answer("down")["ended"]
    assert not [*(home / "run").iterdir()]


def wait_until(holds: Callable[[], object], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.1)
    return bool(holds())


def test_down_is_content_where_none_runs() -> None:
    assert "no gateway of this machine runs" in pml("down").stderr
    assert answer("down") == {"ended": False, "unfinished": 0, "killed": None}


STUCK = """
import os, signal, sys
from pml_gateway.local.endpoint import Endpoint

signal.signal(signal.SIGTERM, signal.SIG_IGN)
endpoint = Endpoint.of(sys.argv[1], sys.argv[2])
endpoint.prepare()
life, listener = endpoint.take_life(), endpoint.listen()
print(os.getpid(), flush=True)
signal.pause()
"""


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """End the process whatever becomes of the test."""
    try:
        yield
    finally:
        process.kill()


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(local_command, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(local_command, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(commands, "KILL_SECONDS", 0.5)
    monkeypatch.setattr(commands, "START_SECONDS", 0.0)


def test_one_that_does_not_answer_is_named_and_ended_by_force(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)
    command = [sys.executable, "-c", STUCK, str(home), str(home / "config.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ending(process):
        assert process.stdout
        process.stdout.readline()
        shown = pml("status", code=1).stdout
        said = " ".join(shown.split())
        assert re.search(rf"\(process {process.pid}\) runs and does not answer: no answer in \S+ s", said)
        assert "`pml down` ends it" in said
        assert "no gateway runs" not in said
        told = answer("status", code=1)["machine"]
        assert (told["pid"], "does not answer" in told["error"]) == (process.pid, True)
        assert answer("clients")["gateway"] == process.pid
        assert f"process {process.pid} did not end by itself and was killed" in pml("down").stderr
        assert process.wait(10) == -signal.SIGKILL
    assert not [*(home / "run").iterdir()]


def test_status_does_not_wait_for_one_that_has_just_begun_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(commands, "START_SECONDS", 3600.0)
    command = [sys.executable, "-c", STUCK, str(home), str(home / "config.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ending(process):
        assert process.stdout
        process.stdout.readline()
        said = " ".join(pml("status", code=1).stdout.split())
        assert re.search(r"no answer in \S+ s; it has just begun, and may be starting", said)


@pytest.mark.slow
def test_one_that_is_ended_by_force_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer("up")
    machine = answer("status")["machine"]
    be_impatient(monkeypatch)
    os.kill(machine["pid"], signal.SIGSTOP)
    assert answer("down") == {"ended": True, "unfinished": 0, "killed": machine["pid"]}
    assert not is_alive(machine["pid"])
    assert not [*(home / "run").iterdir()]


def test_a_broken_configuration_does_not_hide_the_gateway(home: Path) -> None:
    (home / "config.yaml").write_text("servers: [", encoding="utf-8")
    with scripted_machine(home, {"status": STATUS}):
        shown = pml("status", code=78)
        assert shown.stdout.startswith("gateway of this machine 4711")
        assert "broken YAML" in shown.stderr
        report = answer("status", code=78)
    assert (report["machine"]["pid"], len(report["errors"])) == (4711, 1)
    assert "no gateway runs" in pml("status", code=78).stdout


def test_another_configuration_has_a_gateway_of_its_own(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(SERVERS), encoding="utf-8")
    with scripted_machine(home, {"status": STATUS}, config=other):
        assert answer("status")["machine"] is None
        assert answer("status", "--config", str(other))["machine"]["pid"] == 4711


def test_status_shows_clients_and_servers_in_80_columns(home: Path) -> None:
    with scripted_machine(home, {"status": busy(home)}):
        shown = pml("status")
        assert max(map(len, shown.stdout.splitlines())) <= 80
        check_golden("status-machine.txt", shown.stdout, {str(home.parent): "<folder>"})
        report = answer("status")
    assert {**report["machine"], "upstreams": []} == busy(home)
    assert report["gateways"] == []


@pytest.mark.parametrize("columns", range(40, 110, 7))
def test_no_line_of_status_breaks_within_a_number(home: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with scripted_machine(home, {"status": busy(home)}):
        shown = pml("status").stdout
    said, _, _ = shown.partition("\n\n")
    assert "190 MB, 2 clients over stdio, 1 over HTTP" in " ".join(said.split())
    assert not [line for line in said.splitlines() if re.search(r"(for|\d)$", line)]


def test_watching_shows_it_again_and_again_until_it_is_interrupted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "WATCH_SECONDS", 0.0)
    left = 4

    def told() -> JsonObject:
        nonlocal left
        left -= 1
        if not left:
            _thread.interrupt_main()
        return {**STATUS, "age_seconds": float(left), "http_clients": left // 2}

    with scripted_machine(home, {"status": told}):
        lines = pml("status", "--watch", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    # That it is older is no change.
    assert [each["status"]["machine"]["http_clients"] for each in found[:2]] == [1, 0]
    assert found[0]["calls"]["hour"] == {"calls": 0, "failed": 0, "refused": 0}
    assert found[0]["waiting"] == []
    left = 4
    with scripted_machine(home, {"status": told}):
        shown = pml("status", "--watch").stdout
    assert len(re.findall(r"^--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\ngateway of this machine 4711", shown, re.M)) >= 2
    assert "0 calls in the last hour, 0 failed; 0 calls in the last day, 0 failed" in " ".join(shown.split())


def test_on_a_small_terminal_what_needs_something_is_not_what_is_cut(home: Path) -> None:
    clients = [client(home, pid=pid) for pid in range(101, 131)]
    with scripted_machine(home, {"status": {**busy(home), "clients": clients}}):
        screen, terminal = os.openpty()
        termios.tcsetwinsize(screen, (24, 80))
        watch = [sys.executable, "-m", "pml_gateway", "status", "--watch"]
        with subprocess.Popen(watch, stdout=terminal, stderr=terminal) as process, ending(process):
            os.close(terminal)
            first = b""
            # Rich cuts it with dots in the middle of the last line.
            while b"      ...      " not in first:
                assert select.select([screen], [], [], 30)[0]
                first += os.read(screen, 65536)
        os.close(screen)
    assert "command no-such-command-of-pml is not found  pml doctor" in first.decode()


def of_the_machine(home: Path, *words: str) -> list[tuple[str, str]]:
    """What doctor says of the gateway that clients share, without a server to start."""
    (home / "config.yaml").write_text("servers: {files: {command: x, enabled: false}}", encoding="utf-8")
    done = run_here(home, "doctor", "--json", *words, extra={"PML_LOCAL__ATTACH": "true"})
    found = [each for each in json.loads(done.stdout)["findings"] if each["area"] == "machine"]
    return [(each["severity"], " ".join(filter(None, (each["subject"], each["what"], each["fix"])))) for each in found]


def test_doctor_says_how_the_shared_gateway_is_and_why_a_server_has_several_processes(home: Path) -> None:
    with scripted_machine(home, {"status": busy(home)}):
        runs, several = of_the_machine(home)
    saved = "sharing saves 1 gateway and 1 process of a server, about 231 MB"
    assert runs == ("ok", f"gateway 4711 runs, for 3 min, 190 MB, 2 clients over stdio, 1 over HTTP; {saved}")
    assert several == ("ok", "playwright has 2 processes")
    with scripted_machine(home, {"status": {**STATUS, "version": "0.0.1"}}):
        [(severity, what)] = of_the_machine(home)
    assert (severity, "0.0.1, is older" in what, what.endswith("pml restart")) == ("warning", True, True)
    with scripted_machine(home, {"status": {**STATUS, "version": "99.0"}}):
        [(severity, what)] = of_the_machine(home)
        shown = " ".join(pml("status").stdout.split())
    assert (severity, "99.0, and this pml is older" in what, "pml restart" in what) == ("warning", True, False)
    assert f"version 99.0 (this pml is older: {__version__})" in shown
    assert of_the_machine(home)[0] == ("ok", "not running; the first client over stdio starts it")


def test_doctor_says_what_is_in_its_way_and_removes_what_killed_ones_left(home: Path) -> None:
    endpoint = Endpoint.of(home, home / "config.yaml")
    endpoint.prepare()
    # As one leaves it that is killed.
    endpoint.listen().close()
    Path(endpoint.start_lock).touch()
    Path(endpoint.failure).write_text(json.dumps({"message": "no room", "hint": "make some", "exit": 1}))
    Path(endpoint.log).write_text(
        f"17:18:40 ERROR a: long ago\n17:18:41 INFO m: {STARTS}: process 1\n17:18:42 ERROR b: not fine\n"
    )
    _, failure, left, logged = of_the_machine(home)
    assert failure == ("warning", "its last start failed: no room make some")
    assert (left[0], Path(endpoint.socket).name in left[1], "rm " in left[1]) == ("note", True, True)
    assert (logged[0], "1 error in its log" in logged[1]) == ("note", True)
    of_the_machine(home, "--fix")
    assert not [*Path(endpoint.folder).iterdir()]


def test_doctor_quotes_what_went_wrong_since_the_configuration_was_read_anew(home: Path) -> None:
    endpoint = Endpoint.of(home, home / "config.yaml")
    endpoint.prepare()
    lines = ["17:18:42 ERROR a: rejected", f"17:18:43 INFO pml_gateway.serve.reload: {APPLIED}"]
    Path(endpoint.log).write_text("\n".join(lines), encoding="utf-8")
    assert "in its log" not in str(of_the_machine(home))
    Path(endpoint.log).write_text("\n".join([*lines, f"17:18:44 ERROR b: {'word ' * 50}"]), encoding="utf-8")
    shown = run_here(home, "doctor", extra={"PML_LOCAL__ATTACH": "true"}).stdout
    assert "1 error in its log" in shown
    assert "| 17:18:44 ERROR b: word" in shown
    assert max(len(line) for line in shown.splitlines() if " | " in line) <= 80


def test_alone_is_refused_for_http() -> None:
    assert "is for stdio" in pml("serve", "--alone", "--http", code=2).stderr


def test_doctor_says_who_shares_no_gateway(home: Path) -> None:
    Path(Endpoint.of(home, "x").folder).write_text("a file in the place of the folder")
    [(severity, what)] = of_the_machine(home)
    assert (severity, "has a gateway of its own" in what) == ("warning", True)
    Path(Endpoint.of(home, "x").folder).unlink()
    (home / "config.yaml").write_text("local: {attach: false}\nservers: {files: {command: x, enabled: false}}")
    done = json.loads(run_here(home, "doctor", "--json").stdout)
    [told] = [each for each in done["findings"] if each["area"] == "machine"]
    assert (told["severity"], "local.attach is false" in told["what"]) == ("note", True)
