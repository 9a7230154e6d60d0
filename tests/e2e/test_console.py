"""`pml console` as a process: its link, pages that follow the gateway, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from pml_gateway.local.machine import LOOK_SECONDS, UNUSED_SECONDS
from tests.console.pages import form_of, forms
from tests.support.process import environment, run_pml, write_settings
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = 60
ATTACHING = {"PML_LOCAL__ATTACH": "true"}
SETTINGS = {"servers": {"calc": {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}}}


@contextmanager
def console(home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running console and its link, with tools that are known; the gateway that it started ends with it."""
    listed = run_pml(home, "tools")
    assert listed.returncode == 0, listed.stderr
    command = [sys.executable, "-m", "pml_gateway", "console", "--no-open", "--json"]
    process = subprocess.Popen(command, env=environment(home), cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
        run_pml(home, "down", extra=ATTACHING)


def test_a_page_follows_the_gateway_and_the_console_ends_when_told(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    with console(tmp_path) as (process, link), httpx2.Client(timeout=SECONDS, follow_redirects=True) as client:
        first = client.get(link)
        assert first.status_code == 200
        assert "1 server" in first.text
        root = str(first.url).rstrip("/")
        assert "calc__" in client.get(f"{root}/tools").text
        assert "calc__date_difference" in client.get(f"{root}/tools?q=days+between+two+dates").text
        modes = [client.get(f"{root}/lists.json?mode={mode}").json()["mode"] for mode in ("meta_only", "full_proxy")]
        assert modes == ["meta_only", "full_proxy"]
        with client.stream("GET", f"{root}/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("retry")
            assert run_pml(tmp_path, "disable", "calc", "--yes").returncode == 0
            assert any(line.startswith("data: ") and "status" in line for line in lines)
        assert "disabled" in client.get(f"{root}/servers").text
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 128 + signal.SIGINT


@pytest.mark.heavy
def test_the_gateway_waits_for_somebody_to_open_the_page(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    with console(tmp_path) as (_, link), httpx2.Client(timeout=SECONDS, follow_redirects=True) as client:
        [log] = (tmp_path / "logs").glob("gateway-*.log")
        with pytest.raises(AssertionError, match="it has ended"):
            wait_for(lambda: "ending" in log.read_text(), "it has ended", UNUSED_SECONDS + 2 * LOOK_SECONDS)
        root = str(client.get(link).url).rstrip("/")
        assert "calc__" in client.get(f"{root}/tools").text


def test_a_change_reaches_the_gateway_and_is_undone(tmp_path: Path) -> None:
    file = write_settings(tmp_path, SETTINGS)
    before = file.read_text()
    with console(tmp_path) as (_, link), httpx2.Client(timeout=SECONDS, follow_redirects=True) as client:
        first = client.get(link)
        root = str(first.url).rstrip("/")
        own = {"Origin": str(first.url).partition("/console")[0]}
        page = client.get(f"{root}/server?name=calc").text
        asked = next(fields for name, fields in forms(page) if name == "disable")
        refused = client.post(f"{root}/do/disable", data=asked)
        question = client.post(f"{root}/do/disable", data=asked, headers=own)
        made = client.post(f"{root}/do/disable", data=form_of(question.text), headers=own)
        listed = client.get(f"{root}/tools").text
        [(name, undo)] = [each for each in forms(made.text) if each[0] == "undo"]
        undone = client.post(f"{root}/do/{name}", data=undo, headers=own)
        asked = next(fields for name, fields in forms(undone.text) if name == "restart")
        restart = client.post(f"{root}/do/restart", data=asked, headers=own)
        restarted = client.post(f"{root}/do/restart", data=form_of(restart.text), headers=own)
        assert "calc__date_difference" in client.get(f"{root}/tools").text
    assert refused.status_code == 403
    assert "Disable calc?" in question.text
    assert "calc is disabled." in made.text
    assert "calc__" not in listed
    assert "That is undone." in undone.text
    assert "calc starts again." in restarted.text
    assert file.read_text() == before


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    with console(tmp_path) as (_, link):
        port = str(httpx2.URL(link).port)
        answer = run_pml(tmp_path, "console", "--no-open", "--port", port, extra=ATTACHING)
    assert answer.returncode == 1
    assert f"port {port} cannot be used" in answer.stderr
