"""`pml status` and `pml upstreams`: what runs, how every server is and what mends it, without starting anything."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.transport import open_streams
from pml_gateway.owner.operations import RECONNECT
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.reports.status import merged_rows
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import open_redis
from pml_gateway.storage.replicas import Replicas
from pml_gateway.upstreams.auth.login import log_in
from pml_gateway.upstreams.auth.logins import LoginStore
from pml_gateway.upstreams.connector import UpstreamState
from tests.support.authorization import keys_in_files, protected
from tests.support.command_line import home_of, pml, run_here
from tests.support.machine import open_machine
from tests.support.memory import paths_in
from tests.support.process import running_gateway, write_settings
from tests.support.replicas import replicas, replicas_of, shared_sections
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import until

__all__ = ["shared_sections"]

CALC: dict[str, Any] = {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}
MARKING = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"


@pytest.fixture(autouse=True)
def without_a_keyring() -> Iterator[None]:
    with keys_in_files():
        yield


@pytest.mark.slow
def test_without_a_gateway_the_last_known_state_is_shown_and_no_server_is_started(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    servers = {
        "calc": CALC,
        "marking": {"command": sys.executable, "args": ["-c", MARKING, str(mark)]},
        "gone": {"command": "no-such-command-of-pml"},
        "linear": {"url": "http://127.0.0.1:1/mcp", "auth": {"type": "oauth"}},
        "token": {**CALC, "env": {"TOKEN": "${env:PML_TEST_MISSING}"}},
    }
    with home_of(tmp_path, {"servers": {"calc": CALC}}) as home:
        pml("tools", "--json")
        write_settings(home, {"servers": servers})

        shown = pml("status")
        lines = [line.rstrip().split("  ") for line in shown.stdout.splitlines()[2:]]
        assert "no gateway runs with" in shown.stdout
        assert max(map(len, shown.stdout.splitlines()[1:])) <= 80
        assert [(line[0].strip(), line[-1].strip()) for line in lines[1:4]] == [
            ("gone", "pml doctor"),
            ("linear", "pml upstreams login linear"),
            ("token", "pml doctor"),
        ]
        report = json.loads(pml("status", "--json").stdout)
        by_name = {row["server"]: row for row in report["servers"]}
        assert report["gateways"] == []
        assert (by_name["calc"]["state"], by_name["calc"]["needs"]) == ("not_running", None)
        assert by_name["calc"]["tools"] > 5
        assert by_name["marking"]["age_seconds"] is None

        known = json.loads(pml("upstreams", "--json").stdout)["gateways"][0]
        assert known["pid"] is None
        assert {row["state"] for row in known["upstreams"]} == {"not_running"}
        table = pml("upstreams")
        assert "not running" in table.stdout
        assert "--probe" in table.stderr
        assert not mark.exists()

        probed = pml("upstreams", "--probe", "--timeout", "20")
        assert mark.exists()
        assert "ready" in probed.stdout
        assert "again in" not in probed.stdout


def test_disabled_servers_are_shown_with_the_command_that_enables_them(tmp_path: Path) -> None:
    servers = {"calc": CALC, "off": {**CALC, "enabled": False}, "gone": {"url": "https://a.test", "enabled": False}}
    with home_of(tmp_path, {"servers": servers}):
        lines = [line.split() for line in pml("status").stdout.splitlines()]
        assert ["off", "disabled", "pml", "enable", "off"] in lines
        assert ["gone", "disabled", "pml", "enable", "gone"] in lines
        rows = {row["server"]: row for row in json.loads(pml("status", "--json").stdout)["servers"]}
        assert (rows["off"]["state"], rows["off"]["needs"]) == ("disabled", None)
        assert "disabled" in pml("upstreams").stdout


@pytest.mark.anyio
async def test_a_running_gateway_shows_servers_that_are_disabled_in_the_file(tmp_path: Path) -> None:
    async with serving(tmp_path, {"fine": ScriptedServer([tool("t")])}) as served:
        await until(lambda: [*(tmp_path / "run").glob("*.sock")])
        await served.gateway.refresh(20)
        write_settings(tmp_path, {"servers": {"fine": CALC, "off": {**CALC, "enabled": False}}})
        report = await status(tmp_path, "--json")
        shown = await status(tmp_path)
    assert {row["server"]: row["state"] for row in report["servers"]} == {"fine": "ready", "off": "disabled"}
    assert "pml enable off" in shown


def test_a_limit_for_what_is_not_asked_is_refused(tmp_path: Path) -> None:
    with home_of(tmp_path, {"servers": {"calc": CALC}}):
        pml("upstreams", "--timeout", "3", code=2)


async def status(home: Path, *arguments: str) -> Any:
    done = await anyio.to_thread.run_sync(partial(run_here, home, "status", *arguments))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.mark.anyio
async def test_a_running_gateway_tells_how_it_is_reached_and_by_how_many(tmp_path: Path) -> None:
    upstreams = {"fine": ScriptedServer([tool("t")]), "down": ScriptedServer([tool("t")], refuse=True)}
    async with serving(tmp_path, upstreams) as served:
        await until(lambda: [*(tmp_path / "run").glob("*.sock")])
        await served.gateway.refresh(20)
        async with served.handshake():
            await served.names()
            report = await status(tmp_path, "--json")
            shown = await status(tmp_path)
    (gateway,) = report["gateways"]
    assert (gateway["transport"], gateway["url"], gateway["clients"]) == ("http", served.url, 2)
    assert gateway["age_seconds"] > 0
    assert max(map(len, shown.splitlines())) <= 80
    said, _, table = shown.partition("\n\n")
    assert f", {served.url}, for " in " ".join(said.split())
    assert ", 2 clients, mode meta_only, 1 tool" in " ".join(said.split())
    names = [line.split()[0] for line in table.splitlines()[1:] if not line.startswith(" ")]
    assert names == ["down", "fine"]
    (down, fine) = sorted(report["servers"], key=lambda row: str(row["server"]))
    assert down["needs"]["command"].startswith("pml ")
    assert (fine["state"], fine["tools"], fine["needs"]) == ("ready", 1, None)


@pytest.mark.anyio
@pytest.mark.parametrize("words", ["status", "upstreams", "refresh"])
async def test_one_process_is_told_once_however_many_folders_it_serves(tmp_path: Path, words: str) -> None:
    upstream, one, two = ScriptedServer([tool("hello"), tool("bye")]), tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    async with (
        open_machine(tmp_path, {"up": upstream}) as opened,
        opened.attached("a", folder=one),
        opened.attached("b", folder=two, mode="hybrid"),
    ):
        gateways = [profile.runtime.gateway for profile in opened.profiles.all if profile.runtime]
        await until(lambda: all(len(gateway.state.catalog.tools) == 2 for gateway in gateways))
        done = await anyio.to_thread.run_sync(partial(run_here, tmp_path, words, "--json"))
        (gateway,) = json.loads(done.stdout)["gateways"]
        shown = (await anyio.to_thread.run_sync(partial(run_here, tmp_path, words))).stdout
    assert (gateway["mode"], gateway["tools"]) == ("hybrid, meta_only", 2)
    # Below, of the gateway that clients share, are the processes of each server.
    assert sum(line.startswith("up ") for line in shown.partition("\nclient ")[0].splitlines()) == 1


@pytest.mark.anyio
async def test_no_mode_is_told_of_a_gateway_that_is_kept_for_the_next_client(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        async with opened.attached(mode="semantic"):
            assert [each["mode"] for each in (await status(tmp_path, "--json"))["gateways"]] == ["semantic"]
        await until(lambda: not opened.profiles.members)
        (gateway,) = (await status(tmp_path, "--json"))["gateways"]
        shown = [
            (await anyio.to_thread.run_sync(partial(run_here, tmp_path, "upstreams"))).stdout,
            await status(tmp_path),
        ]
    assert (gateway["mode"], gateway["clients"]) == (None, 0)
    assert not any("mode" in each for each in shown)


@pytest.mark.anyio
async def test_a_server_that_was_seen_before_the_start_is_not_said_never_to_have_been(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("hello")])}) as served:
        await served.gateway.refresh(20)
    async with serving(tmp_path, {"up": ScriptedServer([tool("hello")], refuse=True)}) as served:
        await until(lambda: [*(tmp_path / "run").glob("*.sock")])
        await until(lambda: served.gateway.pool.upstreams["up"].connector.last_error is not None)
        (row,) = (await status(tmp_path, "--json"))["servers"]
    assert (row["state"], row["tools"]) == ("failed", 1)
    assert row["age_seconds"] >= 0


@pytest.mark.anyio
async def test_an_edit_that_is_not_served_is_said(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("hello")])
    async with open_machine(tmp_path, {"up": upstream}) as opened, opened.attached():
        (tmp_path / "config.yaml").write_text("servers: [", encoding="utf-8")
        report = await status(tmp_path, "--json")
        async with opened.attached("later", introduced=False) as other:
            assert "broken YAML" in (await other.notice("refused"))["refused"]["message"]
    (error,) = report["errors"]
    assert "broken YAML" in error
    assert "served by the previous configuration, and others are refused" in error
    assert [row["server"] for row in report["servers"]] == ["up"]


def test_a_server_that_is_not_the_same_in_all_folders_is_told_with_them() -> None:
    def report(folder: str, **row: Any) -> dict[str, Any]:
        said = {"server": "up", "age_seconds": 3, "latency_seconds": 0.1, "state": "ready", **row}
        return {"folder": folder, "url": None, "upstreams": [said]}

    rows = merged_rows([report("/a"), report("/b", age_seconds=4), report("/c", state="failed")])
    assert [(row["state"], row["folders"]) for row in rows] == [("ready", ["/a", "/b"]), ("failed", ["/c"])]
    assert "folders" not in merged_rows([report("/d")])[0]


@pytest.mark.anyio
@pytest.mark.slow
async def test_where_a_server_fails_for_some_clients_it_is_said_for_which(tmp_path: Path) -> None:
    folders = {name: tmp_path / "projects" / f"project of {name}" for name in ("alpha", "beta", "gamma")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    servers = {
        "per_folder": {**CALC, "cwd": "./inner", "sessions": "per_folder"},
        "token": {**CALC, "env": {"TOKEN": "${env:TOKEN}"}},
    }
    (folders["alpha"] / "inner").mkdir()
    async with (
        open_machine(tmp_path, {}, servers=servers) as opened,
        opened.attached("alpha", folder=folders["alpha"], environ={"TOKEN": "1"}),
        opened.attached("beta", folder=folders["beta"], environ={"TOKEN": "1"}),
        opened.attached("gamma", folder=folders["beta"]),
    ):
        pools = [gateway.pool for gateway in opened.profiles.gateways]
        await until(lambda: all(each.connector.settled.is_set() for pool in pools for each in pool.upstreams.values()))
        shown = await status(tmp_path)
        report = await status(tmp_path, "--json")
        table = (await anyio.to_thread.run_sync(partial(run_here, tmp_path, "upstreams"))).stdout
    assert {
        (row["server"], row["state"] == "failed", *row["folders"], *(row["clients"] or ())) for row in report["servers"]
    } == {
        ("per_folder", False, str(folders["alpha"])),
        ("per_folder", True, str(folders["beta"])),
        ("token", False, str(folders["alpha"]), str(folders["beta"]), "alpha 1 (1)", "beta 1 (1)"),
        ("token", True, str(folders["beta"]), "gamma 1 (1)"),
    }
    needing = [re.split("  +", line) for line in shown.splitlines() if line.endswith("pml doctor")]
    assert [line[:2] for line in needing] == [["per_folder", "…/project of beta"], ["token", "gamma 1 (1)"]]
    assert re.search(r"environment variable TOKEN is +pml doctor\n +not set", shown)
    assert "alpha 1 (1), beta 1 (1)" in table
    assert "gamma 1 (1)" in table


@pytest.mark.anyio
async def test_a_login_is_asked_for_with_one_command_and_afterwards_the_gateway_connects_by_itself(
    tmp_path: Path,
) -> None:
    async with protected() as stand:
        settings = Settings.model_validate({"servers": {"remote": {"url": stand.url}}})
        async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
            upstream = served.gateway.pool.upstreams["remote"]
            await until(lambda: upstream.connector.state is UpstreamState.FAILED)
            await until(lambda: [*(tmp_path / "run").glob("*.sock")])
            (row,) = (await status(tmp_path, "--json"))["servers"]
            assert row["needs"] == {"what": "needs a login", "command": "pml upstreams login remote"}
            error = (await served.call("remote__whoami"))["structuredContent"]["error"]
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", "pml upstreams login remote")

            definition = settings.servers["remote"]
            await log_in("remote", definition, LoginStore(tmp_path / "auth"), stand.browse, timeout=20)
            # What `pml upstreams login` says to every gateway on this home once it is done.
            await ask_gateways(paths_in(tmp_path), RECONNECT, 20, {"server": "remote"})
            await until(lambda: len(served.gateway.state.catalog.tools) == 2)
            (row,) = (await status(tmp_path, "--json"))["servers"]
    assert (row["login"], row["tools"], row["needs"]) == ("logged_in", 2, None)


@pytest.mark.slow
@pytest.mark.anyio
async def test_doctor_names_the_command_of_a_login_that_is_missing(tmp_path: Path) -> None:
    async with protected() as stand:
        write_settings(tmp_path, {"servers": {"remote": {"url": stand.url}}, "http": {"port": 0}})
        done = await anyio.to_thread.run_sync(partial(run_here, tmp_path, "doctor", "--json"))
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["subject"] == "remote"]
    assert (found["severity"], found["fix"]) == ("error", "pml upstreams login remote")


@pytest.mark.slow
def test_gateways_of_one_home_that_share_a_storage_have_one_table_of_replicas(tmp_path: Path, redis_url: str) -> None:
    settings = {"servers": {"calc": CALC}, "storage": {"url": redis_url, "key": "${env:KEY}"}}
    extra = {"KEY": "a random text that all gateways have"}
    with running_gateway(tmp_path, settings, extra=extra), running_gateway(tmp_path, settings, extra=extra):
        shown = run_here(tmp_path, "status").stdout
    assert (shown.count("gateway "), shown.count("replica "), shown.count("this one")) == (2, 1, 1)


@pytest.mark.anyio
async def test_a_replica_whose_clock_differs_is_not_said_to_serve_nothing(
    tmp_path: Path, shared_sections: dict[str, Any], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    async with (
        replicas(tmp_path, {}, 1, **shared_sections) as (one,),
        open_redis(redis_url, "${env:STORAGE_KEY}", os.environ) as server,
    ):
        assert server is not None
        other = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 300)
            await other.serve_at("http://127.0.0.1:1")
        await replicas_of(one).all()
        shown = await anyio.to_thread.run_sync(lambda: run_here(tmp_path / "0", "status").stdout)
    [row] = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith(other.own.id)]
    assert row.startswith("its clock differs: pml doctor")
