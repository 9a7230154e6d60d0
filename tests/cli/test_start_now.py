"""`pml init` and `pml connect` start the gateway if they are told to, so that the first session finds its tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.local.endpoint import Endpoint
from tests.support.command_line import home_of_a_person, pml

pytestmark = [pytest.mark.slow, pytest.mark.field("D1")]

CALC = {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}
HOW = "pml up starts the gateway now"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A person whose client has a server that works and one that does not."""
    home = home_of_a_person(tmp_path, monkeypatch)
    servers = {"calc": CALC, "broken": {"command": "no-such-command-of-pml"}}
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    yield home
    pml("down")


def living(home: Path) -> int | None:
    return Endpoint.of(home / ".pml", home / ".pml" / "config.yaml").living()


def test_a_gateway_that_init_starts_has_its_servers_ready_for_the_first_session(home: Path) -> None:
    said = pml("init", "--client", "cursor", "--yes", "--start").stderr
    assert "ready: calc" in said
    assert "warning: broken: " in said
    told: Any = json.loads(pml("status", "--json").stdout)
    assert told["machine"]["started_by"] == "client"
    assert {row["server"]: row["tools"] for row in told["servers"]}["calc"] > 0
    # Nobody is asked again for one that runs.
    assert HOW not in pml("connect", "cursor", "--yes").stderr


@pytest.mark.parametrize(("words", "is_said"), [((), True), (("--no-start",), False)])
def test_without_a_terminal_it_is_only_said_how_to_start_it(home: Path, words: tuple[str, ...], is_said: bool) -> None:
    assert (HOW in pml("init", "--client", "cursor", "--yes", *words).stderr) == is_said
    assert (HOW in pml("connect", "cursor", "--yes", *words).stderr) == is_said
    assert living(home) is None


def test_where_clients_have_gateways_of_their_own_nothing_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_LOCAL__ATTACH", "false")
    assert HOW not in pml("init", "--client", "cursor", "--yes", "--start").stderr
    assert living(home) is None


@pytest.mark.field("D3")
def test_a_client_is_connected_to_the_port_that_listens(home: Path) -> None:
    pml("init", "--client", "cursor", "--yes", "--no-start")
    url = json.loads(pml("up", "--http", "--port", "0", "--json").stdout)["url"]
    said = pml("connect", "cursor", "--http", "--yes").stderr
    entry = json.loads((home / ".cursor" / "mcp.json").read_text(encoding="utf-8"))["mcpServers"]["pml"]
    assert entry["url"] == url
    assert "start the gateway" not in said
