"""Commands that ask the gateway of this machine: fast, with the state that servers keep, and the same answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.local.endpoint import Endpoint
from tests.support.command_line import home_of, pml
from tests.support.memory import paths_in
from tests.support.process import is_alive
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.field("D2")]

COUNTING = """
import json, os, pathlib, sys, time

calls = 0
log = pathlib.Path(sys.argv[1])
with log.open("a") as file:
    file.write(f"{os.getpid()}\\n")
tool = {"name": "count", "description": "Count the calls of this process.", "inputSchema":
        {"type": "object", "properties": {"step": {"type": "integer"}}}}
wait = {"name": "wait", "description": "Wait without end.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    result = {}
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "counting", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [tool, wait]}
        case "tools/call" if asked["params"]["name"] == "wait":
            log.with_suffix(".waits").touch()
            continue
        case "tools/call":
            calls += asked["params"]["arguments"].get("step", 1)
            result = {"content": [{"type": "text", "text": str(calls)}]}
        case "notifications/cancelled":
            log.with_suffix(".cancelled").touch()
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SESSIONS = ("shared", "per_folder", "per_client")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a server of each kind of sessions, and the gateway of the machine, which commands start."""
    folder = tmp_path_factory.mktemp("asking")
    servers = {
        sessions: {"command": sys.executable, "args": ["-c", COUNTING, str(folder / sessions)], "sessions": sessions}
        for sessions in SESSIONS
    }
    clients = {"narrow": {"key": "${env:NARROW_KEY}", "allow": ["shared:*"], "mode": "full_proxy"}}
    # What is learned of results would make a difference between answers.
    settings = {"servers": servers, "clients": clients, "learning": {"output_shapes": False}}
    with home_of(folder, settings) as home, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PML_LOCAL__ATTACH")
        patch.setenv("NARROW_KEY", "a-key-of-a-client-1")
        try:
            yield home
        finally:
            pml("down")


def machine(home: Path) -> Any:
    return json.loads(pml("status", "--json").stdout)["machine"]


@pytest.mark.parametrize("sessions", SESSIONS)
def test_two_calls_meet_the_state_of_one_server(home: Path, sessions: str) -> None:
    first = int(pml("call", f"{sessions}__count").stdout)
    assert pml("call", f"{sessions}__count", "--step", "5").stdout == f"{first + 5}\n"
    assert pml("call", f"{sessions}:count", '{"step": 1}', "--json").stdout.count(f'"{first + 6}"') == 1


def test_the_gateway_stays_for_the_minutes_that_it_waits_for_clients(home: Path) -> None:
    pml("call", "shared__count")
    told = machine(home)
    assert (told["started_by"], told["clients"]) == ("client", [])
    assert {len(server["processes"]) for server in told["servers"] if server["server"] == "shared"} == {1}


@pytest.mark.parametrize(
    "words",
    [
        "upstreams --probe",
        "upstreams --probe --config {config}",
        "enrich --dry-run --all",
        "example-queries list",
        "example-queries show shared__count",
        "example-queries learn",
        "example-queries remove shared__count --yes",
        "eval init --output {folder}/queries.jsonl --force",
        "eval --queries {folder}/queries.jsonl",
        "migrate plan --to meta_only",
        "migrate --to meta_only --dry-run",
        "config --wizard --dry-run",
        "doctor",
    ],
)
def test_a_command_asks_the_running_gateway_and_starts_no_server_again(home: Path, words: str) -> None:
    queries = home.parent / "queries.jsonl"
    queries.write_text(json.dumps({"query": "count the calls", "gold": ["shared__count"]}) + "\n", encoding="utf-8")
    pml("tools")
    running, starts = machine(home)["pid"], (home.parent / "shared").read_text(encoding="utf-8")
    # Without it, another gateway would have to start the servers to know their tools.
    shutil.rmtree(paths_in(home).manifest_dir, ignore_errors=True)
    pml(*words.format(config=home / "config.yaml", folder=home.parent).split())
    assert machine(home)["pid"] == running
    assert (home.parent / "shared").read_text(encoding="utf-8") == starts


def test_state_outlives_other_clients_that_come_and_leave(home: Path, tmp_path: Path) -> None:
    before = int(pml("call", "per_folder__count").stdout)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (tmp_path / ".pml.yaml").write_text("intent: count\n", encoding="utf-8")
        pml("tools", "--mode", "hybrid", "--query", "count")
        pml("tools", "--preset", "full_proxy")
    assert int(pml("call", "per_folder__count").stdout) == before + 1


@pytest.mark.parametrize(
    "words",
    [
        ("tools",),
        ("tools", "--mode", "hybrid", "--query", "count the calls"),
        ("tools", "--preset", "full_proxy"),
        ("tools", "--client", "narrow"),
        ("tools", "--explain", "--mode", "semantic", "--query", "count the calls"),
        ("search", "count the calls", "--limit", "2"),
        ("search", "count the calls", "--detail", "schema", "--server", "shared"),
        ("search", "count the calls", "--explain"),
        ("search", "*"),
        ("schema", "shared__count", "--format", "typescript"),
        ("schema", "shared__count", "no__such"),
        ("tokens", "--query", "count the calls", "--context-window", "1000"),
        ("call", "shared__count", "--help"),
        ("prompts",),
        ("workflow", "list"),
        ("stats", "--upstream", "shared"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_answers_are_those_of_a_gateway_of_its_own(home: Path, words: tuple[str, ...], as_json: bool) -> None:
    words = (*words, "--json") if as_json else words
    code = 1 if "no__such" in words and not as_json else 0
    asked = pml(*words, code=code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_LOCAL__ATTACH", "false")
        own = pml(*words, code=code)
    assert (asked.stdout, asked.stderr) == (own.stdout, own.stderr)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("call", "shared__count", "--stepp", "1"), 2, "did you mean"),
        (("call", "shared__count", "--step", "x"), 2, "--step"),
        (("call", "shared__cuont"), 1, "did you mean"),
        (("call", "shared__cuont", "--help"), 1, "closest"),
        (("search", "x", "--server", "nope"), 2, "known are shared, "),
        (("schema", "no__such"), 1, "no tool named 'no__such' pml search WORDS finds tools by what they do"),
        (("call", "no__such"), 1, "no tool named 'no__such' pml search WORDS finds tools by what they do"),
        (("example-queries", "show", "no__such"), 1, "pml search WORDS finds tools by what they do"),
        (("tools", "--client", "nobody"), 2, "nobody"),
        (("stats", "--upstream", "shred"), 2, "did you mean shared? known are shared, "),
        (("tools", "--mode", "nonsense"), 2, "choose from"),
    ],
)
def test_errors_keep_their_exit_codes_and_remedies(home: Path, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in " ".join(pml(*words, code=code).output.split())
    told = pml(*words, "--json", code=code)
    assert "error" in json.dumps(json.loads(told.stdout)) or code == 2


def test_another_file_is_answered_by_a_gateway_of_that_file(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    servers = {"else": {"command": sys.executable, "args": ["-c", COUNTING, str(tmp_path / "else")]}}
    other.write_text(json.dumps({"servers": servers}), encoding="utf-8")
    try:
        assert pml("call", "else__count", "--config", str(other)).stdout == "1\n"
        assert pml("call", "else__count", "--config", str(other)).stdout == "2\n"
        assert "shared__count" not in pml("tools", "--config", str(other)).stdout
        pml("call", "shared__count")
        assert f"of {other}" in " ".join(pml("status").stdout.split())
        said = pml("down").stderr
        assert f"pml down --config {other}" in said
        assert Endpoint.of(home, other).living() is not None
    finally:
        pml("down", "--all")
    assert Endpoint.of(home, other).living() is None


def test_a_configuration_that_cannot_be_read_is_told_as_ever(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("servers: {a: {comand: x}}\n", encoding="utf-8")
    try:
        assert "comand" in pml("call", "a__b", "--config", str(broken), code=78).stderr
        error = json.loads(pml("tokens", "--config", str(broken), "--json", code=78).stdout)["error"]
        assert "comand" in error["message"]
    finally:
        pml("down", "--config", str(broken))


def test_where_it_is_switched_off_no_gateway_is_started(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": ["-c", COUNTING, str(tmp_path / "up")]}}
    with home_of(tmp_path, {"servers": servers, "local": {"attach": False}}) as home:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PML_LOCAL__ATTACH")
            assert pml("call", "up__count").stdout == "1\n"
            assert pml("call", "up__count").stdout == "1\n"
        assert Endpoint.of(home, home / "config.yaml").living() is None


def test_a_call_that_is_interrupted_is_cancelled_at_its_server(home: Path) -> None:
    noted = home.parent / "shared"
    with subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "call", "shared__wait"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(noted.with_suffix(".waits").exists, "the server has the call")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
    wait_for(noted.with_suffix(".cancelled").exists, "the server is told")


def test_what_commands_do_is_no_use_by_a_client(home: Path) -> None:
    pml("search", "count the calls")
    pml("call", "shared__count")
    assert json.loads(pml("stats", "--json").stdout)["calls"] == 0


def test_a_command_whose_gateway_is_killed_says_so(home: Path) -> None:
    waits = (home.parent / "per_folder").with_suffix(".waits")
    with subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "call", "per_folder__wait"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(waits.exists, "the server has the call")
            running = machine(home)["pid"]
            os.kill(running, signal.SIGKILL)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "before it answered" in said
    assert "it is not known whether call was carried out" in said
    wait_for(lambda: not is_alive(running), "it has ended")


def test_what_they_import_is_small() -> None:
    script = (
        "import sys; import pml_gateway.cli.asking; from pml_gateway.cli.app import Commands; commands = Commands();"
        "[commands[name] for name in ('call', 'search', 'schema', 'tools', 'tokens')];"
        "print(*sorted({'pydantic', 'anyio', 'asyncio', 'mcp', 'numpy', 'ruamel', 'ssl'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"
