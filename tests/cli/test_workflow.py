"""`pml workflow` on the bundled servers: lists, checks and runs what the configuration and files say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pml_gateway.cli.app import app
from pml_gateway.demo.definitions import demo_servers

WORKFLOWS: dict[str, Any] = {
    "double": {
        "description": "Double a number. Any number will do.",
        "input": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        "steps": [{"tool": "calc__evaluate_expression", "arguments": {"expression": "2 * $input.number"}}],
    },
    "broken": {"description": "Uses a tool that does not exist.", "steps": [{"id": "x", "tool": "calc__evaluate"}]},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PML_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    servers = {"calc": demo_servers(tmp_path / "demo")["calc"]}
    file.write_text(json.dumps({"servers": servers, "workflows": WORKFLOWS}), encoding="utf-8")
    yield file
    ran("down", "--config", str(file))


def ran(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.slow
def test_workflows_are_listed_checked_and_run(config: Path, tmp_path: Path) -> None:
    given = ("--config", str(config))
    code, listed = ran("workflow", "list", *given)
    assert code == 0
    assert [(row["name"], row["tool"], bool(row["problems"])) for row in listed["workflows"]] == [
        ("double", "workflows__double", False),
        ("broken", "workflows__broken", True),
    ]
    code, checked = ran("workflow", "validate", *given)
    assert (code, checked["valid"]) == (1, False)
    [problem] = checked["workflows"][1]["problems"]
    assert problem["message"] == "there is no tool 'calc__evaluate'"
    said = CliRunner().invoke(app, ["workflow", "list", *given])
    assert "workflows.broken.steps.0.tool: there is no tool 'calc__evaluate'" in " ".join(said.stderr.split())
    code, result = ran("workflow", "run", "duble", *given)
    assert (code, result["error"]["code"]) == (1, "NOT_FOUND")
    assert result["error"]["message"] == "no workflow named 'duble'; did you mean double?"
    assert "calc__evaluate_expression" in problem["hint"]
    code, result = ran("workflow", "run", "double", "--arg", "number=21", *given)
    assert (code, result["structuredContent"]["value"]) == (0, 42)
    code, result = ran("workflow", "run", "broken", *given)
    assert (code, result["structuredContent"]["error"]["code"]) == (1, "UPSTREAM_UNAVAILABLE")
    code, validated = ran("config", "validate", *given)
    assert code == 78
    (missing,) = validated["problems"]
    assert missing["key"] == "workflows.broken.steps.0.tool"
    assert missing["message"].startswith("there is no tool 'calc__evaluate'; did you mean calc__evaluate_expression")
    file = tmp_path / "steps.yaml"
    file.write_text("steps:\n- tool: calc__evaluate_expression\n  arguments: {expression: 6 * 7}\n", encoding="utf-8")
    code, checked = ran("workflow", "run", str(file), "--dry-run", *given)
    assert (code, checked["structuredContent"]["valid"]) == (0, True)
    code, result = ran("workflow", "run", str(file), *given)
    assert result["structuredContent"]["steps"][0]["result"]["value"] == 42


def test_a_file_that_asks_for_a_dry_run_gets_one_and_a_faulty_one_fails(config: Path, tmp_path: Path) -> None:
    given = ("--config", str(config))
    file = tmp_path / "steps.yaml"
    step = {"tool": "calc__evaluate_expression", "arguments": {"expression": "1"}}
    file.write_text(json.dumps({"dry_run": True, "steps": [step]}), encoding="utf-8")
    code, checked = ran("workflow", "run", str(file), *given)
    assert (code, checked["structuredContent"].get("dry_run")) == (0, True)
    file.write_text(json.dumps({"steps": [{"tool": "calc__nothing"}]}), encoding="utf-8")
    code, checked = ran("workflow", "run", str(file), "--dry-run", *given)
    assert (code, checked["structuredContent"]["valid"]) == (1, False)


@pytest.mark.slow
def test_the_owner_runs_workflows_also_where_clients_get_neither_meta_tool(config: Path, tmp_path: Path) -> None:
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["gateway"] = {"meta_tools": ["search_tools"], "direct_calls": "listed"}
    config.write_text(json.dumps(settings), encoding="utf-8")
    given = ("--config", str(config))
    code, result = ran("workflow", "run", "double", "--arg", "number=4", *given)
    assert (code, result["structuredContent"]["value"]) == (0, 8)
    file = tmp_path / "steps.yaml"
    file.write_text("steps:\n- {tool: workflows__double, arguments: {number: 5}}\n", encoding="utf-8")
    code, result = ran("workflow", "run", str(file), *given)
    assert (code, result["structuredContent"]["steps"][0]["result"]["value"]) == (0, 10)
