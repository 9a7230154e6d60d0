"""MCP Apps in a real browser: a page of the reference host shows interfaces of servers, and they call their tools."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.process import OverStdio, over_stdio, write_settings

from .install import Installation, InstallationError, install_browser
from .test_apps import entries, packages

if TYPE_CHECKING:
    from playwright.async_api import FrameLocator, Page, Route

__all__ = ["packages"]

playwright = pytest.importorskip("playwright.async_api", reason="drives a browser")

# Four browsers and four servers start one after the other.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.anyio, pytest.mark.timeout(300)]

HOST = "https://host.test/"
"""The origin of the page, which the test answers for itself."""

PAGE = Path(__file__).with_name("apps_page.html")
MAX_LINE = 16 * 1024**2
WAIT_MS = 60_000


def browser() -> Path:
    """The program of the browser; a system without one and without its packages skips the test."""
    try:
        return install_browser()
    except InstallationError as exc:
        pytest.skip(str(exc))


@asynccontextmanager
async def opened_page(packages: Path) -> AsyncIterator[Page]:
    """The page of the host in a browser, which loads the npm packages from this folder."""

    async def serve(route: Route) -> None:
        path = route.request.url.removeprefix(HOST)
        file = packages / path.removeprefix("npm/") if path else PAGE
        kind = "text/javascript" if path else "text/html"
        if file.is_file():
            await route.fulfill(body=file.read_text(encoding="utf-8"), content_type=kind)
        else:
            await route.fulfill(status=404)

    async with playwright.async_playwright() as engines:
        program = browser()
        # The browser's own sandbox needs rights that containers do not give.
        opened = await engines.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = await opened.new_page()
            page.set_default_timeout(WAIT_MS)
            await page.route(f"{HOST}**", serve)
            yield page
        finally:
            await opened.close()


@asynccontextmanager
async def shown(packages: Path, target: dict[str, Any], tool: str) -> AsyncIterator[FrameLocator]:
    """The interface of a tool of this server, shown after a call of it."""
    command = [str(target["command"]), *target["args"]]
    async with (
        opened_page(packages) as page,
        await anyio.open_process(command, env=target.get("env"), stdin=PIPE, stderr=None) as process,
        anyio.create_task_group() as tasks,
    ):
        assert process.stdin is not None and process.stdout is not None
        to_server, lines = process.stdin, BufferedByteReceiveStream(process.stdout)

        async def send(message: Any) -> None:
            await to_server.send(json.dumps(message).encode() + b"\n")

        async def receive() -> None:
            while True:
                line = await lines.receive_until(b"\n", MAX_LINE)
                await page.evaluate("message => window.receive(message)", json.loads(line))

        await page.expose_function("send", send)
        await page.goto(HOST)
        tasks.start_soon(receive)
        with anyio.fail_after(WAIT_MS / 1000):
            await page.evaluate("tool => window.show(tool, {})", tool)
        yield page.frame_locator("#app")
        tasks.cancel_scope.cancel()
        process.terminate()


def without_times(payload: str) -> str:
    """What an event says, without the times in it and the number of the call."""
    return re.sub(r'\d{4}-\d\d-\d\dT[\d:.]+Z|("(?:processedAt|counter)": )\d+', r"\1", payload)


async def logged(packages: Path, target: dict[str, Any]) -> list[tuple[str, str]]:
    """The events of the debug server's interface, which calls a tool for both, and one for itself alone."""
    async with shown(packages, target, "debug-tool") as app:
        await app.locator("#tool-delay-ms").fill("1")
        results = app.locator(".log-entry", has=app.locator(".server-tool-result"))
        for number, name in enumerate(("debug-tool", "debug-refresh"), start=1):
            await app.locator(f"#call-{name}-btn").click()
            await playwright.expect(results).to_have_count(number, timeout=WAIT_MS)
        kinds = await app.locator(".log-entry .log-type").all_text_contents()
        payloads = await app.locator(".log-entry .log-payload-full").all_text_contents()
    return list(zip(kinds, map(without_times, payloads), strict=True))


async def polled(packages: Path, target: dict[str, Any]) -> str:
    """The platform that the system monitor shows, once a tool for its interface alone has filled a bar."""
    async with shown(packages, target, "get-system-info") as app:
        await playwright.expect(app.locator("#memory-percent")).to_have_text(re.compile(r"\d%"), timeout=WAIT_MS)
        return await app.locator("#info-platform").inner_text()


@pytest.mark.parametrize("over", ["stdio", "bridge"])
async def test_an_interface_in_a_browser_works_as_without_a_gateway(
    tmp_path: Path, installation: Installation, packages: Path, over: OverStdio
) -> None:
    servers = entries(installation, packages)
    debug, platform = await logged(packages, servers["debug"]), await polled(packages, servers["system-monitor"])
    assert [kind for kind, _ in debug if kind == "server-tool-result:"] == ["server-tool-result:"] * 2
    assert not [payload for kind, payload in debug if kind == "error:" or '"isError": true' in payload]
    write_settings(tmp_path, {"servers": servers, "gateway": {"tools_exposure": "full_proxy"}})
    with over_stdio(over, tmp_path) as target:
        assert await logged(packages, target) == debug
        assert await polled(packages, target) == platform
