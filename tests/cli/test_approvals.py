"""The page for a single user, command by command, on a gateway that runs as its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from typer.testing import CliRunner

from pml_gateway.cli.app import app
from pml_gateway.demo.definitions import demo_servers
from pml_gateway.docs import page_of
from pml_gateway.gateway.approvals import is_passphrase
from tests.support.approving import KEYS, asking
from tests.support.command_line import home_of, pml
from tests.support.documents import PAGES, code_blocks
from tests.support.process import environment, run_pml
from tests.support.waiting import wait_for

EXAMPLE_ID = "1f2e3d4c"


def answer(*words: str) -> Any:
    return json.loads(pml(*words, "--json").stdout)


def waiting() -> list[str]:
    return [row["id"] for row in answer("approvals", "list") if row["state"] == "pending"]


def begin_call(home: Path, number: int) -> subprocess.Popen[str]:
    """Call a tool that writes, as an agent would, and wait until it waits."""
    words = ["call", "files__write_file", "--path", f"{number}.txt", "--content", "text"]
    command = [sys.executable, "-m", "pml_gateway", *words]
    process = subprocess.Popen(
        command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: bool(waiting()), "the call waits")
    return process


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    [page] = [page for page in PAGES if page.stem == "approvals"]
    assert page_of("approvals").title == "Ask before anything destructive"
    commands = [line for block in code_blocks(page) for line in block.commands]
    settings = {"servers": {"files": demo_servers(tmp_path / "demo")["files"]}, "approvals": {"notify": False}}
    with home_of(tmp_path, settings) as home, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PML_LOCAL__ATTACH")
        pml("up")
        answers: dict[str, str] = {}
        called: list[subprocess.Popen[str]] = []
        for line in commands:
            words = line.split()[1:]
            if words == ["approvals", "secret"]:
                typed = "correct horse battery\n"
                done = CliRunner().invoke(app, [*words, "--json"], input=typed * 2)
                hashed = json.loads(done.stdout.strip().splitlines()[-1] if "{" not in done.stdout else done.stdout)
                assert is_passphrase("correct horse battery", hashed["approvals"]["secret"])
                continue
            if EXAMPLE_ID in words and not waiting():
                called.append(begin_call(home, len(called)))
            words = [waiting()[0] if word == EXAMPLE_ID else word for word in words]
            if words[:2] == ["approvals", "list"]:
                called.append(begin_call(home, len(called)))
            answers[line] = pml(*words).stdout
        outputs = [process.communicate(timeout=60)[0] for process in called]
        assert [process.returncode for process in called] == [0, 1]
    assert "files__write_file" in answers["pml approvals list"]
    assert '"path": "0.txt"' in answers[f"pml approvals show {EXAMPLE_ID}"]
    approved = answers[f"pml approvals approve {EXAMPLE_ID}"]
    assert approved.startswith("approved: ")
    assert approved.endswith("The call goes on.\n")
    assert "denied this call" in " ".join(outputs[1].split())
    assert [file.name for file in (tmp_path / "demo").rglob("*.txt") if file.name in ("0.txt", "1.txt")] == ["0.txt"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_watching_shows_each_call_that_waits_once_and_nothing_that_a_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)

    async def watched(*options: str) -> str:
        words = ("approvals", "watch", "--seconds", "2", *options)
        done = await anyio.to_thread.run_sync(lambda: run_pml(tmp_path, *words))
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with asking(tmp_path) as asked:
        await asked.call("up__wipe", {"repo": "first"})
        await asked.answer()
        await asked.call("up__wipe", {"repo": "mi\x1b[2J\u202ene"})
        await asked.call("up__drop", {"repo": "other"}, "BOB")
        text = await watched()
        rows = [json.loads(line) for line in (await watched("--json")).splitlines()]
        ids = await asked.waiting()
        approved = await anyio.to_thread.run_sync(lambda: run_pml(tmp_path, "approvals", "approve", ids[0]))
    assert "Its client has to send the call again." in " ".join(approved.stdout.split())
    assert [row["id"] for row in rows] == ids
    assert [text.count(f"{id_}: pending, asked by") for id_ in ids] == [1, 1]
    assert r'"repo": "mi\u001b[2J\u202ene"' in text
    assert '~ /repo: "first" before, ' in text
    assert "up__drop (rules[0]: ask)" in text and "asked by bob" in text
    assert "\x1b" not in text and "\u202e" not in text
