"""`pml doctor`: every fault of a gateway is named with what puts it right."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.upstreams.faults import FIRST_BACKOFF
from tests.support import fake_npx
from tests.support.command_line import home_of, listing, pml, run_here
from tests.support.golden import check_golden
from tests.support.process import OWN_GATEWAYS, environment, running_gateway, write_settings

LAST_WORDS = "import sys; print('password=hunter22', file=sys.stderr); print('no such database', file=sys.stderr)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own: no client of this machine is in it, and paths do not wrap."""
    with home_of(tmp_path, {}) as home:
        home.chmod(0o700)
        monkeypatch.setenv("COLUMNS", "1000")
        yield home


@pytest.fixture
def attaching(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the setting as it is by default, with which doctor starts the gateway that clients share."""
    monkeypatch.delenv("PML_LOCAL__ATTACH")
    yield
    pml("down")


def calc_in(home: Path) -> dict[str, Any]:
    """A server that lists what the demo's calc does."""
    return listing(home.parent / "demo", "calc")["calc"]


def findings(*options: str, code: int = 0) -> list[dict[str, Any]]:
    """The findings that are no good news."""
    report = json.loads(pml("doctor", "--json", *options, code=code).stdout)
    assert report["exit_code"] == code
    return [finding for finding in report["findings"] if finding["severity"] != "ok"]


def private(home: Path, settings: dict[str, Any]) -> Path:
    """A configuration that only its owner can read, with a port that nobody needs."""
    config = write_settings(home, {"http": {"port": 0}, **settings})
    config.chmod(0o600)
    return config


@pytest.mark.usefixtures("attaching")
def test_every_fault_is_named_with_its_remedy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {
        "calc": calc_in(home),
        "typo": {"command": "pythonn3", "args": ["-m", "nothing"]},
        "github": {**calc_in(home), "env": {"GITHUB_TOKEN": "${env:GITHUB_PAT}"}},
        "dies": {"command": sys.executable, "args": ["-c", LAST_WORDS]},
        "off": {**calc_in(home), "enabled": False},
    }
    whitelist = {"tools_exposure": "hybrid", "hybrid": {"whitelisted_tools": ["calc__conver_units"]}}
    clients = {"bot": {"key": "${env:BOT_KEY}", "deny": ["nowhere:*"]}}
    private(home, {"servers": servers, "gateway": whitelist, "clients": clients})
    monkeypatch.setenv("BOT_KEY", "short")
    monkeypatch.delenv("GITHUB_PAT", raising=False)
    report = pml("doctor", code=78).stdout
    assert "hunter22" not in report
    check_golden("doctor.txt", report, {str(home): "~/.pml"})


STARTS = {
    "says why": "sys.exit('no key')",
    "says nothing": "os._exit(3)",
    "late": "time.sleep(0.5); sys.exit('no key')",
    "closes its output": "os.close(1); time.sleep(0.5)",
    "closes its input": "os.close(0); time.sleep(0.5)",
    "through a shell": "sys.exit(subprocess.run(['sh', '-c', 'exit 1']).returncode)",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes there do not tell what was read")
def test_servers_that_end_before_they_read_anything_are_started_again_after_a_pause_only(
    home: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    servers = {}
    for name, ends in STARTS.items():
        noted = f"open({str(started)!r}, 'a').write(f'{name}:{{time.time()}}' + chr(10))"
        code = f"import os, subprocess, sys, time; {noted}; {ends}"
        servers[name] = {"command": sys.executable, "args": ["-c", code]}
    private(home, {"servers": {"calc": calc_in(home), **servers}})
    assert {each["subject"] for each in findings(code=1) if each["area"] == "servers"} == set(STARTS)
    times: dict[str, list[float]] = {}
    for line in started.read_text().splitlines():
        name, _, at = line.partition(":")
        times.setdefault(name, []).append(float(at))
    assert times.keys() == STARTS.keys()
    pauses = [after - before for each in times.values() for before, after in pairwise(each)]
    assert all(pause > FIRST_BACKOFF / 2 for pause in pauses), times


@pytest.mark.usefixtures("attaching")
def test_a_gateway_in_order_exits_with_zero(home: Path) -> None:
    private(home, {"servers": {"calc": calc_in(home)}})
    assert [finding["what"] for finding in findings()] == ["no client uses the gateway yet"]


def test_tools_without_requests_are_counted_with_the_command_that_writes_some(home: Path) -> None:
    private(home, {"servers": {"calc": calc_in(home)}})
    findings = json.loads(pml("doctor", "--json").stdout)["findings"]
    [found] = [each for each in findings if each["subject"] == "example queries"]
    assert (found["severity"], found["what"]) == (
        "ok",
        "known for 0 of 14 tools; pml enrich writes some for the others",
    )


def test_a_configuration_that_does_not_load_leaves_the_rest_to_be_looked_at(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(home, {"servers": {"calc": {"comand": "sh"}}, "gateway": {"tools_exposur": "hybrid"}})
    found = findings(code=78)
    # The port that is used by default may be taken on a developer's machine.
    assert {finding["area"] for finding in found} - {"gateways"} == {"configuration"}
    assert any(finding["fix"] == "did you mean tools_exposure?" for finding in found)
    monkeypatch.setenv("COLUMNS", "80")
    report = pml("doctor", code=78).stdout
    assert [line for line in report.splitlines() if len(line) > 80 and len(line.split()) > 3] == []


def test_an_unknown_mode_is_an_error_although_a_gateway_would_serve(home: Path) -> None:
    private(home, {"gateway": {"tools_exposure": "hybird"}})
    (found,) = [each for each in findings(code=78) if "mode" in each["what"]]
    assert found["severity"] == "error"
    assert "unknown mode 'hybird', using meta_only" in found["what"]
    assert found["fix"].endswith("did you mean hybrid?")


@pytest.mark.usefixtures("attaching")
def test_no_servers_are_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_HTTP__PORT", "0")
    [fault, _] = findings(code=78)
    assert (fault["what"], fault["fix"]) == ("no servers are configured", "pml init")


def test_a_server_that_works_badly_fails_the_examination_but_not_the_configuration(home: Path) -> None:
    private(
        home,
        {"servers": {"calc": calc_in(home), "silent": {"command": "sleep", "args": ["60"], "connect_timeout": 0.5}}},
    )
    found = findings(code=1)
    [silent] = [finding for finding in found if finding["area"] == "servers"]
    assert silent["subject"] == "silent"
    assert "connect_timeout" in silent["fix"]


@pytest.mark.slow
def test_where_nothing_can_be_written_nothing_is_promised_that_would_be(home: Path, tmp_path: Path) -> None:
    config = private(home, {"servers": {"calc": calc_in(home)}})
    extra = {"PML_LOCAL__ATTACH": "true"}
    done = run_here(Path("/proc/self/home"), "doctor", "--json", "--config", str(config), extra=extra, cwd=tmp_path)
    told = {(each["area"], each["subject"]): each["what"] for each in json.loads(done.stdout)["findings"]}
    unable = "cannot be written (No such file or directory)"
    assert told["machine", None] == (
        f"not running, and no client can start it, as /proc/self/home/run {unable}: "
        "each client over stdio has a gateway of its own"
    )
    assert told["search", "manifest"].startswith(f"there is none, and /proc/self/home/manifest {unable}: every start")


@pytest.mark.slow
def test_what_is_safe_is_put_right_when_asked(home: Path) -> None:
    config = private(home, {"servers": {"calc": calc_in(home)}})
    secrets, left = home / "secrets.env", home / "run" / "1.sock"
    secrets.write_text("A=b\n")
    left.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(left))
    for path, mode in ((home, 0o755), (config, 0o644), (secrets, 0o644)):
        path.chmod(mode)
    before = findings(code=1)
    assert {finding["subject"] for finding in before if finding["can_be_fixed"]} == {
        *map(str, (home, config, secrets, left))
    }
    assert left.exists()
    fixed = findings("--fix")
    assert {finding["fixed"] for finding in fixed if finding["can_be_fixed"]} == {True}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, config, secrets)] == [0o700, 0o600, 0o600]
    assert not left.exists()
    assert not [finding for finding in findings() if finding["can_be_fixed"]]


@pytest.mark.slow
def test_who_has_the_port_is_named_unless_it_is_a_gateway_of_ours(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        private(home, {"servers": {"calc": calc_in(home)}, "http": {"port": port}})
        [taken] = [finding for finding in findings() if finding["area"] == "gateways"]
        assert taken["subject"] == f"127.0.0.1:{port}"
        assert taken["what"].startswith("the port is taken by ")
    with running_gateway(home, {"servers": {"calc": calc_in(home)}, "http": {"port": port}}) as gateway:
        found = json.loads(pml("doctor", "--json").stdout)["findings"]
        assert f"gateway {gateway.process.pid}" in {finding["subject"] for finding in found}


def test_clients_are_told_apart_by_where_they_get_their_tools(home: Path) -> None:
    private(home, {"servers": {"calc": calc_in(home)}, "http": {"port": 8765}})
    own = {"command": sys.executable, "args": ["-m", "pml_gateway", "serve"]}
    (home.parent / ".claude.json").write_text(json.dumps({"mcpServers": {"pml": own}}))
    (home.parent / ".cursor").mkdir()
    (home.parent / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": calc_in(home)}}))
    (home.parent / ".gemini").mkdir()
    (home.parent / ".gemini" / "settings.json").write_text(
        '{"mcpServers": {"pml": {"command": "/gone/pml", "args": ["serve"]}}}'
    )
    found = {finding["subject"]: finding for finding in findings(code=1) if finding["area"] == "clients"}
    assert "defers the gateway's tools" in found["claude-code (user)"]["what"]
    assert found["cursor (user)"]["fix"] == "pml connect cursor"
    assert found["gemini-cli (user)"]["severity"] == "error"
    assert "pml connect gemini-cli" in found["gemini-cli (user)"]["fix"]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_a_warning_with_the_consequence(home: Path, tmp_path: Path) -> None:
    private(home, {"servers": {"calc": calc_in(home)}, "search": {"model": str(tmp_path / "no-model")}})
    warned = {finding["subject"]: finding for finding in findings() if finding["area"] == "search"}
    assert "found by their words alone" in warned[f"model {tmp_path / 'no-model'}"]["what"]
    assert "ranking lexical instead of fused" in warned["index"]["what"]


HOSTILE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import anyio
from tests.support.hostile import doubled
from tests.support.scripted_server import ScriptedServer
tools = [{{"name": "slow", "description": "Slow.", "inputSchema": doubled()}}]
anyio.run(ScriptedServer(tools).serve_stdio)
"""


@pytest.mark.usefixtures("attaching")
def test_a_schema_that_took_too_long_in_a_call_is_named(home: Path) -> None:
    private(home, {"servers": {"bad": {"command": sys.executable, "args": ["-c", HOSTILE]}}})
    pml("call", "bad__slow", '{"a": 1}')
    [found] = [finding for finding in findings() if "take too long" in finding["what"]]
    assert found["subject"] == "bad"
    assert found["details"] == ["bad__slow: ended after 50000 steps"]


@pytest.mark.slow
def test_what_npx_left_incomplete_is_named_and_removed_after_a_question(home: Path, tmp_path: Path) -> None:
    variables = fake_npx.runner_in(tmp_path)
    folder = fake_npx.broken_cache(tmp_path)
    fake_npx.let_finish(tmp_path)
    servers = {"one": fake_npx.entry(variables), "two": fake_npx.entry(variables, "--other")}
    private(home, {"servers": servers})
    found = [finding for finding in findings("--fix", code=1) if finding["area"] == "servers"]
    assert [finding["can_be_fixed"] for finding in found] == [True, True]
    assert all(str(folder) in finding["what"] and "pml doctor --fix" in finding["fix"] for finding in found)
    assert folder.exists(), "nobody was asked"
    fixed = [finding for finding in findings("--fix", "--yes") if finding["area"] == "servers"]
    assert [finding["fixed"] for finding in fixed] == [True, True]
    assert not folder.exists()
    assert not [finding for finding in findings() if finding["area"] == "servers"]


@pytest.mark.slow
def test_a_server_that_is_installed_is_waited_for_and_not_for_ever(home: Path, tmp_path: Path) -> None:
    private(home, {"servers": {"npx": fake_npx.entry(fake_npx.runner_in(tmp_path))}})
    [found] = [finding for finding in findings("--timeout", "2") if finding["area"] == "servers"]
    assert (found["severity"], found["what"].split(",")[0]) == ("warning", "installing")
    fake_npx.let_finish(tmp_path)
    assert not [finding for finding in findings() if finding["area"] == "servers"]


@pytest.mark.slow
def test_a_command_says_what_is_installed_and_leaves_it_to_its_end(home: Path, tmp_path: Path) -> None:
    private(home, {"servers": {"npx": fake_npx.entry(fake_npx.runner_in(tmp_path))}})
    with subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "tools"],
        env={**environment(home, OWN_GATEWAYS), "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        said = next(line for line in command.stderr if "installing" in line)
        assert "npx @scope/server" in said
        assert "goes on if you interrupt" in said
        command.send_signal(signal.SIGINT)
        command.wait(30)
    assert "killed" not in fake_npx.journal(tmp_path)
    fake_npx.let_finish(tmp_path)
    [row] = [row for row in json.loads(pml("tools", "--json").stdout)["tools"] if row["server"] == "npx"]
    assert row["name"] == "npx__t"
    assert fake_npx.journal(tmp_path).count("begun") == 1
