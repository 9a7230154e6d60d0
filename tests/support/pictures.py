"""Pictures of the console for README and docs, made from the demo's servers and two clients.

`python -m tests.support.pictures` writes them; with `--look FOLDER` it writes every page there, light, dark and narrow.
It needs playwright, and a Chromium, which it installs as the tests do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import Implementation

from pml_gateway.demo.definitions import demo_servers
from tests.e2e.install import install_browser
from tests.e2e.test_console import console
from tests.support.process import SERVE, environment, run_pml, write_settings

if TYPE_CHECKING:
    from playwright.async_api import Browser

PICTURES = Path(__file__).parents[2] / "pml_gateway" / "docs" / "pictures"
MAX_BYTES = 150_000
WAIT_MS = 60_000
RECORDED_SECONDS = 3
"""Seconds until all that clients did is on the pages."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: a page in light or dark colours."""

    name: str
    path: str
    scheme: str


SHOWN = (
    Picture("console-overview", "overview", "light"),
    Picture("console-list", "lists?mode=hybrid&intent=search+my+notes", "dark"),
    Picture("console-activity", "activity", "light"),
    Picture("console-waiting", "waiting", "dark"),
)
WIDTH, HEIGHT = 1200, 760

PAGES = (
    "overview",
    "servers",
    "server?name=notes",
    "lists",
    "lists?mode=hybrid&intent=search+my+notes",
    "tools",
    "tools?q=days+between+two+dates",
    "tool?name=calc__date_difference",
    "waiting",
    "activity",
    "activity?show=missed",
    "access",
    "settings",
)
LOOKS = (("light", WIDTH), ("dark", WIDTH), ("light", 360))

SETTINGS = {
    "gateway": {"tools_exposure": "hybrid", "intent": "search notes and files"},
    "rules": [
        {"match": {"tool": "files:*delete*"}, "do": "ask"},
        {"match": {"tool": "notes:delete_note"}, "do": "ask"},
    ],
    "approvals": {"hold_seconds": 0},
    "activity": {"arguments": "masked"},
}


@contextmanager
def demo(home: Path) -> Iterator[str]:
    """A console in front of the demo's servers; yields its link."""
    write_settings(home, SETTINGS | {"servers": demo_servers(home / "demo")})
    with console(home) as (_, link):
        yield link


async def work(home: Path, clients: AsyncExitStack) -> None:
    """Connect two clients, and have them search and call."""
    env = {**environment(home), "PML_LOCAL__ATTACH": "true"}

    async def connected(name: str, folder: str) -> Client:
        (home / folder).mkdir()
        command, *arguments = SERVE
        started = StdioServerParameters(command=command, args=arguments, env=env, cwd=home / folder)
        return await clients.enter_async_context(Client(started, client_info=Implementation(name=name, version="1")))

    run_pml(home, "tools", extra={"PML_LOCAL__ATTACH": "true"})
    claude, cursor = await connected("claude-code", "website"), await connected("cursor", "garden")
    for client in (claude, cursor):
        await client.list_tools()
    await claude.call_tool("search_tools", {"query": "read a file"})
    for name, arguments in (
        ("files__list_directory", {"path": "."}),
        ("files__read_file", {"path": "welcome.md"}),
        ("files__read_file", {"path": "missing.md"}),
        ("notes__search_notes", {"query": "backup"}),
        ("notes__delete_note", {"note_id": 3}),
    ):
        await claude.call_tool("call_tool", {"name": name, "arguments": arguments})
    await cursor.call_tool("search_tools", {"query": "book a flight to Lisbon"})
    await cursor.call_tool("search_tools", {"query": "days between two dates"})
    dates = {"start": "2026-03-01", "end": "2026-05-17"}
    await cursor.call_tool("call_tool", {"name": "calc__date_difference", "arguments": dates})
    steps = [
        {"id": "find", "tool": "notes__search_notes", "arguments": {"query": "backup"}},
        {"id": "read", "tool": "files__read_file", "arguments": {"path": "logs/backup.log"}},
        {"id": "list", "tool": "files__list_directory", "arguments": {"path": "logs"}, "depends_on": ["find", "read"]},
        {"id": "count", "tool": "calc__date_difference", "arguments": dates, "depends_on": ["list"]},
    ]
    await cursor.call_tool("execute_workflow", {"steps": steps})
    await asyncio.sleep(RECORDED_SECONDS)


async def draw(browser: Browser, link: str, looks: Path | None) -> None:
    """Write the pictures, or every page in each look."""
    context = await browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    await page.goto(link)
    root = page.url
    if looks is None:
        PICTURES.mkdir(exist_ok=True)
        for picture in SHOWN:
            await page.emulate_media(color_scheme=picture.scheme)  # type: ignore[arg-type]
            await page.goto(root + picture.path)
            file = PICTURES / f"{picture.name}.png"
            await page.screenshot(path=file)
            if file.stat().st_size > MAX_BYTES:
                sys.exit(f"{file} has {file.stat().st_size:,} bytes; at most {MAX_BYTES:,} are kept")
        return
    await page.goto(root + "activity?tool=execute_workflow")
    last = await page.locator("a[href*='access?']").first.get_attribute("href")
    for scheme, width in LOOKS:
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        for path in PAGES:
            address = root.split("/console")[0] + last if path == "access" and last else root + path
            await page.goto(address)
            name = path.replace("?", "_").replace("&", "_").replace("=", "-")
            await page.screenshot(path=looks / f"{name}.{scheme}-{width}.png", full_page=True)


async def main(looks: Path | None) -> None:
    """Make the pictures."""
    from playwright.async_api import async_playwright

    program = install_browser()
    with tempfile.TemporaryDirectory() as folder, demo(Path(folder)) as link:
        async with AsyncExitStack() as clients, async_playwright() as engines:
            await work(Path(folder), clients)
            # The browser's own sandbox needs rights that containers do not give.
            browser = await engines.chromium.launch(executable_path=program, args=["--no-sandbox"])
            await draw(browser, link, looks)
            await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--look", type=Path, help="write every page into this folder instead")
    given = parser.parse_args()
    if given.look is not None:
        given.look.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.look))
