"""`pml activity` beside a gateway that serves: what clients did is listed, followed and explained, and survives."""

from __future__ import annotations

import json
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.activity.accesses import AccessFilter, read_accesses
from tests.support.command_line import run_here
from tests.support.process import GatewayProcess, environment, running_gateway
from tests.support.raw import result_modern

SECONDS = 60
SETTINGS = {
    "servers": {"calc": {"command": sys.executable, "args": ["-P", "-m", "pml_gateway.demo.servers.calc"]}},
    "gateway": {"blacklisted_tools": ["calc:convert_units"]},
}
NO_TOOLS = {"servers": {"gone": {"command": "no-such-command-of-pml"}}}
FORGED = "x\n99  2026-01-01 00:00:00  owner  calc__evaluate_expression  OK\x1b[2J"


def call(gateway: GatewayProcess, name: str, /, **arguments: Any) -> dict[str, Any]:
    return result_modern(gateway.url, "tools/call", {"name": name, "arguments": arguments})


def listed(home: Path, *options: str) -> list[dict[str, Any]]:
    done = run_here(home, "activity", "--json", *options)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["accesses"]
    return found


def targets(home: Path) -> list[str]:
    """The names in all records, read without a command, which takes seconds to start."""
    return [each.target for each in read_accesses(home / "activity.db", AccessFilter(str(home / "config.yaml")), 1000)]


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(tmp_path_factory.mktemp("home"), SETTINGS) as running:
        until(lambda: not call(running, "calc__evaluate_expression", expression="1+1").get("isError"))
        call(running, "search_tools", query="days between two dates")
        call(running, "call_tool", name="calc__date_difference", arguments={"start": "2026-01-01", "end": "2026-01-02"})
        call(running, "calc__convert_units", value=1)
        call(running, "call_tool", name=FORGED, arguments={})
        until(lambda: targets(running.home).count("call_tool") == 2)
        yield running


def test_accesses_are_listed_with_decision_and_sizes_and_can_be_filtered(gateway: GatewayProcess) -> None:
    [led] = listed(gateway.home, "--tool", "calc__date_difference")
    assert (led["code"], led["how"], led["query"], led["rank"]) == ("OK", "call_tool", "days between two dates", 1)
    assert (led["kept"], set(led["arguments"]), led["sends"]) == ("keys", {"start", "end"}, 1)
    assert led["seconds"] >= led["server_seconds"] > 0
    assert led["given"] > 20 and led["answered"] > 10
    refused = listed(gateway.home, "--outcome", "refused", "--limit", "2")
    assert [(each["target"], each["rule"]) for each in refused] == [
        ("calc__convert_units", "blacklisted: calc:convert_units"),
        (FORGED, ""),
    ]
    assert {each["server"] for each in listed(gateway.home, "--server", "calc")} == {"calc"}
    assert listed(gateway.home, "--tool", "calc__d*", "--since", "1h", "--client", "anonymous") == [led]
    assert led["program"] == "raw" and led["replica"] == ""
    assert led in listed(gateway.home, "--program", "raw")
    assert listed(gateway.home, "--client", "nobody") == listed(gateway.home, "--program", "nobody") == []
    assert [each["target"] for each in listed(gateway.home, "--limit", "1")] == [FORGED]


def test_the_table_has_a_column_of_decisions_only_where_something_decided(gateway: GatewayProcess) -> None:
    plain = run_here(gateway.home, "activity", "--tool", "calc__date_difference")
    ruled = run_here(gateway.home, "activity")
    assert "decision" not in plain.stdout
    assert "decision" in ruled.stdout


def test_an_unknown_outcome_is_refused_with_those_there_are(gateway: GatewayProcess) -> None:
    done = run_here(gateway.home, "activity", "--outcome", "timeut")
    assert done.returncode == 2
    assert "did you mean timeout?" in done.stderr.lower()


def test_one_access_is_shown_with_its_search_and_the_rest_of_its_request(gateway: GatewayProcess) -> None:
    [led] = listed(gateway.home, "--tool", "calc__date_difference")
    shown = run_here(gateway.home, "activity", "show", str(led["id"])).stdout
    for part in ("days between two dates, place 1", "decision   allowed", "start (", "sent       1 time", "call_tool"):
        assert part in shown
    way = json.loads(run_here(gateway.home, "activity", "show", str(led["id"]), "--json").stdout)
    assert way["access"] == led
    assert "call_tool" in [each["target"] for each in way["request"]]
    missing = run_here(gateway.home, "activity", "show", "999999")
    assert missing.returncode == 2 and "no record 999999" in missing.stderr


def test_a_name_from_a_client_can_forge_no_line(gateway: GatewayProcess) -> None:
    lines = run_here(gateway.home, "activity").stdout.splitlines()
    assert not any(line.startswith("99  2026-01-01") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_following_shows_what_happens_from_now_on(gateway: GatewayProcess) -> None:
    command = [
        sys.executable,
        "-m",
        "pml_gateway",
        "activity",
        "--follow",
        "--json",
        "--tool",
        "calc__evaluate_expression",
    ]
    lines: queue.Queue[str] = queue.Queue()
    with subprocess.Popen(command, env=environment(gateway.home), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        reader = threading.Thread(target=lambda: [*map(lines.put, following.stdout or ())], daemon=True)
        reader.start()
        # It follows from its start on, which nobody sees from outside: calls are made until one is shown.
        end = time.monotonic() + SECONDS
        while lines.empty():
            assert time.monotonic() < end
            call(gateway, "calc__evaluate_expression", expression="2+2")
            time.sleep(0.2)
        following.send_signal(signal.SIGINT)
        following.wait(SECONDS)
        reader.join(SECONDS)
    assert json.loads(lines.get())["target"] == "calc__evaluate_expression"


def test_a_killed_gateway_loses_no_written_row_and_the_next_one_says_so(tmp_path: Path) -> None:
    with running_gateway(tmp_path, NO_TOOLS) as running:
        call(running, "first")
        call(running, "last")
        until(lambda: targets(tmp_path)[-1:] == ["last"])
        before = targets(tmp_path)
        running.stop(signal.SIGKILL)
    with (tmp_path / "activity.db-wal").open("ab") as torn:
        torn.write(b"\x00\x01half a frame")
    assert targets(tmp_path) == before
    with running_gateway(tmp_path, NO_TOOLS) as again:
        call(again, "nothing")
        until(lambda: targets(tmp_path) == [*before, "nothing"])
    assert any("was killed" in line for line in again.log)
    [missing] = json.loads(run_here(tmp_path, "activity", "--json").stdout)["missing"]
    assert f"process {running.process.pid} was killed" in missing["reason"]
    assert "was killed" in run_here(tmp_path, "activity").stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux alone")
def test_a_full_disk_loses_nothing_that_fits_in_memory_and_is_said(tmp_path: Path) -> None:
    with running_gateway(tmp_path, NO_TOOLS) as running:
        call(running, "first")
        until(lambda: targets(tmp_path) == ["first"])
        pid = running.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        for number in range(5):
            call(running, f"full{number}")
        until(lambda: any("cannot be written" in line for line in running.log))
        assert targets(tmp_path) == ["first"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        until(lambda: targets(tmp_path) == ["first", *(f"full{number}" for number in range(5))])
