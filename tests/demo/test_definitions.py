from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.demo.definitions import demo_servers

pytestmark = pytest.mark.anyio

STARTUP_SECONDS = 30


@pytest.mark.slow
async def test_the_three_servers_run_as_processes_and_offer_forty_tools(tmp_path: Path) -> None:
    names: list[str] = []
    for entry in demo_servers(tmp_path / "demo").values():
        transport = StdioTransport(entry["command"], entry["args"], cwd=entry["cwd"], keep_alive=False)
        with anyio.fail_after(STARTUP_SECONDS):
            async with Client(transport) as client:
                tools = await client.list_tools()
        names += [tool.name for tool in tools]
        for tool in tools:
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is not None
            described = tool.input_schema.get("properties", {}).values()
            assert all("description" in str(schema) for schema in described), tool.name
    assert len(names) == len(set(names)) >= 40


async def test_settings_in_the_working_directory_are_not_read(tmp_path: Path) -> None:
    entry = demo_servers(tmp_path)["calc"]
    (tmp_path / ".env").write_text("FASTMCP_LOG_LEVEL=no such level\n")
    (tmp_path / "fastmcp.py").write_text("raise RuntimeError('imported from the working directory')\n")
    transport = StdioTransport(entry["command"], entry["args"], cwd=entry["cwd"], keep_alive=False)
    with anyio.fail_after(STARTUP_SECONDS):
        async with Client(transport) as client:
            assert await client.list_tools()


@pytest.mark.slow
async def test_nothing_but_the_protocol_goes_to_stdout(tmp_path: Path) -> None:
    entry = demo_servers(tmp_path)["notes"]
    with anyio.fail_after(STARTUP_SECONDS):
        done = await anyio.run_process([entry["command"], *entry["args"]], input=b"", cwd=entry["cwd"])
    assert (done.stdout, done.stderr) == (b"", b"")


async def test_a_second_start_keeps_what_the_first_left(tmp_path: Path) -> None:
    demo_servers(tmp_path)
    (tmp_path / "files" / "welcome.md").write_text("changed")
    (tmp_path / "files" / "logs" / "backup.log").unlink()
    demo_servers(tmp_path)
    assert (tmp_path / "files" / "welcome.md").read_text() == "changed"
    assert not (tmp_path / "files" / "logs" / "backup.log").exists()


async def test_the_entries_are_valid_upstream_definitions(tmp_path: Path) -> None:
    for entry in demo_servers(tmp_path).values():
        assert UpstreamDefinition.model_validate(entry).command == entry["command"]
