"""`pml lineage` asks the running gateways, and the store where it outlives them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.process import run_pml, running_gateway
from tests.support.raw import result_modern

UPSTREAM = Path(__file__).parents[1] / "support" / "scripted_server.py"


@pytest.mark.slow
def test_a_references_lineage_is_shown_while_its_gateway_runs_and_afterwards(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM)]}}
    settings = {"servers": servers, "references": {"mode": "meta", "store": "disk", "threshold_tokens": 100}}
    with running_gateway(tmp_path, settings) as gateway:
        given = {"name": "up__echo", "arguments": {"message": "secret words " * 500}}
        result = result_modern(gateway.url, "tools/call", {"name": "call_tool", "arguments": given})
        ref = result["structuredContent"]["ref"]
        running = run_pml(tmp_path, "lineage", ref, "--json")
    stopped = run_pml(tmp_path, "lineage", ref)
    unknown = run_pml(tmp_path, "lineage", f"{ref[:-4]}AAAA")
    [call] = [node for node in json.loads(running.stdout)["nodes"] if node["kind"] == "call"]
    assert (call["tool"], call["status"], call["inputs"]) == ("up__echo", "ok", "{message: str(6500)}")
    assert "up__echo" in stopped.stdout and ref[:8] in stopped.stdout, stopped.stderr
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no stored result" in unknown.stderr
