"""`pml prompts` and `pml resources` with a real server behind them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from tests.support.process import write_settings

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("s")
@server.prompt()
def review(language: str) -> str:
    return f"Review this {language}."
@server.resource("note://one")
def one() -> str:
    return "first note"
@server.resource("note://page/{number}")
def page(number: str) -> str:
    return f"page {number}"
server.run()
"""


@pytest.mark.slow
def test_prompts_and_resources_are_listed_got_and_read(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    write_settings(tmp_path, {"servers": {"s": {"command": sys.executable, "args": [str(script)]}}})
    listed = json.loads(run_here(tmp_path, "prompts", "--json").stdout)["prompts"]
    assert [(row["server"], row["name"]) for row in listed] == [("s", "review")]
    got = run_here(tmp_path, "prompts", "review", "--arg", "language=python").stdout
    assert "Review this python." in got
    assert "language" in run_here(tmp_path, "prompts").stdout
    shown = run_here(tmp_path, "resources").stdout
    assert "note://one" in shown
    assert "note://page/{number}" in shown
    assert run_here(tmp_path, "resources", "note://page/7").stdout.strip() == "page 7"
    (row,) = json.loads(run_here(tmp_path, "upstreams", "--json").stdout)["gateways"][0]["upstreams"]
    assert (row["prompts"], row["resources"], row["templates"]) == (1, 1, 1)
    refused = run_here(tmp_path, "prompts", "nothing")
    assert refused.returncode == 1
    assert "no server offers 'nothing'" in refused.stderr


@pytest.mark.slow
def test_where_there_is_nothing_to_list_it_says_why_and_json_stays_as_it_is(tmp_path: Path) -> None:
    calc = {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}
    write_settings(tmp_path, {"servers": {"calc": calc, "gone": {"command": "no-such-command-at-all"}}})
    shown = run_here(tmp_path, "prompts")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "no prompts: 1 of 2 servers answered" in shown.stderr
    assert "gone: command 'no-such-command-at-all' cannot be started" in shown.stderr
    assert "pml doctor" in shown.stderr
    assert json.loads(run_here(tmp_path, "prompts", "--json").stdout) == {"prompts": []}


@pytest.mark.slow
def test_what_is_blacklisted_is_not_there_for_commands_either(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    hidden = {"blacklisted_tools": ["s:review", "s:note://one"]}
    servers = {"s": {"command": sys.executable, "args": [str(script)]}}
    write_settings(tmp_path, {"servers": servers, "gateway": hidden})
    assert json.loads(run_here(tmp_path, "prompts", "--json").stdout)["prompts"] == []
    assert "note://one" not in run_here(tmp_path, "resources").stdout
    for command in (["prompts", "review", "--arg", "language=python"], ["resources", "note://one"]):
        refused = run_here(tmp_path, *command)
        assert refused.returncode == 1
        assert f"no server offers {command[1]!r}" in refused.stderr
