"""`pml workflow` on the bundled servers: lists, checks and runs what the configuration and files say."""

from __future__ import annotations

import json
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
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PML_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    servers = {"calc": demo_servers(tmp_path / "demo")["calc"]}
    file.write_text(json.dumps({"servers": servers, "workflows": WORKFLOWS}), encoding="utf-8")
    return file


def ran(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


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
    assert "calc__evaluate_expression" in problem["hint"]
    code, result = ran("workflow", "run", "double", "--arg", "number=21", *given)
    assert (code, result["structuredContent"]["value"]) == (0, 42)
    code, result = ran("workflow", "run", "broken", *given)
    assert (code, result["structuredContent"]["error"]["code"]) == (1, "UPSTREAM_UNAVAILABLE")
    code, validated = ran("config", "validate", *given)
    assert code == 0
    assert any("workflows.broken.steps.0.tool: there is no tool 'calc__evaluate'" in w for w in validated["warnings"])
    file = tmp_path / "steps.yaml"
    file.write_text("steps:\n- tool: calc__evaluate_expression\n  arguments: {expression: 6 * 7}\n", encoding="utf-8")
    code, checked = ran("workflow", "run", str(file), "--dry-run", *given)
    assert (code, checked["structuredContent"]["valid"]) == (0, True)
    code, result = ran("workflow", "run", str(file), *given)
    assert result["structuredContent"]["steps"][0]["result"]["value"] == 42
