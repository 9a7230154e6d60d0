"""The page for a team's lead: its configuration and every command, on a gateway with a key for each person."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pml_gateway.demo.definitions import demo_servers
from tests.support.approving import outcome
from tests.support.documents import PAGES, code_blocks
from tests.support.process import run_pml, running_gateway
from tests.support.raw import decoded, post_modern
from tests.support.waiting import wait_for

PAGE = next(page for page in PAGES if page.stem == "team")


@pytest.mark.slow
def test_each_person_has_the_rights_of_the_page_and_every_command_runs(tmp_path: Path) -> None:
    blocks = code_blocks(PAGE)
    [written] = [YAML(typ="safe").load(block.text) for block in blocks if block.language == "yaml"]
    commands = [shlex.split(line)[1:] for block in blocks for line in block.commands]
    home = tmp_path / "home"
    servers = {name: each for name, each in demo_servers(tmp_path / "demo").items() if name in ("files", "calc")}
    keys: dict[str, str] = {}
    outputs: dict[str, str] = {}
    settings = {**written, "servers": servers, "approvals": {"hold_seconds": 0, "notify": False}}
    with running_gateway(home, settings) as gateway:

        def call(who: str, name: str, **given: Any) -> str:
            params = {"name": name, "arguments": given}
            return outcome(decoded(post_modern(gateway.url, "tools/call", params, key=keys[who])))

        for words in commands:
            if words[0] == "serve":
                # It runs already, since the clients of this test cannot wait for a fixed port.
                wait_for(lambda: call("ben", "files__read_file", path="a.txt") != "NOT_FOUND", "the servers listed")
                assert call("ben", "files__write_file", path="b.txt", content="x") == "NOT_FOUND"
                assert call("ada", "files__write_file", path="b.txt", content="x") == "PENDING_APPROVAL"
                assert call("ada", "calc__evaluate_expression", expression="1+1") == "OK"
                continue
            limited = ["--seconds", "0"] if words[:2] == ["approvals", "watch"] else []
            done = run_pml(home, *words, *limited)
            assert done.returncode == 0, (words, done.stderr)
            outputs[" ".join(words)] = done.stdout
            if words[:2] == ["keys", "add"]:
                keys[words[2]] = done.stdout.strip()
        refused = post_modern(gateway.url, "tools/list", {}, key=keys["ben"])
    assert refused.status_code == 401
    assert "asked by ada" in outputs["approvals watch"] and "files__write_file" in outputs["approvals watch"]
    assert "files__write_file" in outputs["activity --outcome refused"]
    assert "calc__evaluate_expression" in outputs["activity --client ada --since 1h"]
    assert "ben" in (home / "audit.jsonl").read_text(encoding="utf-8")
