"""The skills of FastMCP's servers reach FastMCP's client, whichever of them has a skill of the same name."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from fastmcp import Client
from fastmcp.skills import SkillsClientExtension

from tests.support.process import running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

SERVER = """
import sys
from fastmcp import FastMCP
from fastmcp.skills.provider import SkillsDirectoryProvider
server = FastMCP(sys.argv[2])
server.add_provider(SkillsDirectoryProvider(sys.argv[1]))
server.run(show_banner=False)
"""
FOUND_SECONDS = 90


async def test_skills_of_two_servers_are_listed_and_read(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    servers = {}
    for server, names in {"one": ["refunds", "mail"], "two": ["refunds"]}.items():
        for name in names:
            folder = tmp_path / server / name
            (folder / "references").mkdir(parents=True)
            text = f"---\nname: {name}\ndescription: How {server} does {name}.\n---\nAs {server}.\n"
            (folder / "SKILL.md").write_text(text, encoding="utf-8")
            (folder / "references" / "MORE.md").write_text(f"more of {server}", encoding="utf-8")
        servers[server] = {"command": sys.executable, "args": [str(script), str(tmp_path / server), server]}
    home = tmp_path / "home"
    home.mkdir()

    read: list[tuple[str, str, str]] = []
    with running_gateway(home, {"servers": servers}) as process, anyio.fail_after(FOUND_SECONDS):
        # The servers declare skills in the stateless era only, which the first client makes the gateway try.
        while not read:
            async with Client(process.url, extensions=[SkillsClientExtension()]) as client:
                declared = client.server_capabilities
                if declared is None or SkillsClientExtension.identifier not in (declared.extensions or {}):
                    await anyio.sleep(0.5)
                    continue
                listed = await client.list_skills()
                for skill in listed:
                    assert not isinstance(skill.resources, str)
                    for file in skill.resources:
                        [content] = await client.read_resource(file.uri)
                        read.append((skill.frontmatter.description, skill.uri, str(getattr(content, "text", ""))))
            if len({uri for _, uri, _ in read}) < 3:
                read.clear()
                await anyio.sleep(0.5)
    assert len(read) == 6
    uris = sorted({uri for _, uri, _ in read})
    # The server that listed second has the longer one.
    assert uris in (
        [f"pml://{second}/skill://refunds/SKILL.md", "skill://mail/SKILL.md", "skill://refunds/SKILL.md"]
        for second in ("one", "two")
    )
    for description, _, text in read:
        server = description.split()[1]
        assert f"As {server}." in text or text == f"more of {server}"
