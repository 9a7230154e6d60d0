"""Doctor lists the names that are too long for a client once it has put its prefix before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.clients.known import CLIENTS
from pml_gateway.config.findings import Finding, Severity
from pml_gateway.config.settings import NamingSettings, Settings
from pml_gateway.reports.doctor.clients import clients, long_names
from tests.clients.machine import Machine
from tests.support.cases import machine_case, started_case

LONG = "do_" * 25
PML = {"command": "pml", "args": ["serve"]}


def names_too_long(max_length: int, machine: Machine) -> list[Finding]:
    tools = tuple({"name": name, "inputSchema": {"type": "object"}} for name in ("list", LONG))
    catalog = build_catalog([UpstreamListing("up", tools)], max_length=max_length)
    settings = Settings.model_validate({"naming": {"max_length": max_length}})
    return list(long_names(started_case(catalog, settings, surroundings=machine.surroundings)))


def servers(**entries: Any) -> dict[str, Any]:
    return {"mcpServers": entries}


def test_a_name_over_the_limit_of_a_client_that_is_connected_is_listed_with_the_remedy(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("home/.claude.json", servers(pml=PML))
    machine.write("home/.cursor/mcp.json", servers(other={"command": "npx", "args": ["x"]}))
    (finding,) = names_too_long(64, machine)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "claude-code (user)")
    assert "1 name of tools would have more than 64 characters with 'mcp__pml__' before them" in finding.what
    assert finding.fix == "set naming.max_length to 54 or less"
    (name,) = finding.details
    assert len(name) == 64
    assert names_too_long(52, machine) == []


def test_a_long_name_of_the_entry_costs_the_names_of_tools_and_of_our_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("home/.cursor/mcp.json", servers(**{"the-gateway-of-all-my-servers-and-of-their-tools": PML}))
    (finding,) = names_too_long(52, machine)
    assert finding.fix == "call the entry 'pml'"
    assert len(finding.details[0]) == 52
    assert "execute_workflow" in finding.details
    assert "up__list" not in finding.details


def test_that_a_client_starts_servers_beside_the_gateway_has_a_way_to_hear_why(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (own := tmp_path / "pml").touch(0o755)
    machine.write("home/.cursor/mcp.json", servers(pml={**PML, "command": str(own)}, missing={"command": "no-such"}))
    (finding,) = clients(machine_case(tmp_path, machine.surroundings))
    assert finding.what.endswith("starts 1 server itself as well")
    # Where the gateway cannot start it, both commands leave it in the client.
    assert finding.fix == "pml init --client cursor, then pml connect cursor, which says what keeps the rest there"


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.names], ids=lambda client: client.name)
def test_the_default_leaves_room_for_what_every_known_client_puts_before(client: Any) -> None:
    assert client.names.room("pml") >= NamingSettings().max_length
