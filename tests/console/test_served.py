"""The console that a gateway serves beside `/mcp`: opened by the owner's token, or by a link on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from pml_gateway.console.access import ROOT, ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.hosts import KnownHosts
from pml_gateway.owner.operations import CONSOLE
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.policy.keys import KeyStore
from pml_gateway.policy.owner_tokens import MAX_GUESSES, OwnerTokens
from tests.console.pages import NothingRuns, forms
from tests.support.memory import paths_in
from tests.support.replicas import replicas, shared_sections
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]

PUBLIC = "https://mcp.example.com"
MODES = ("meta_only", "full_proxy")


def tokens_in(folder: Path) -> KeyStore:
    return KeyStore(paths_in(folder), "test", of_owner=True)


@asynccontextmanager
async def served_console(folder: Path, **sections: Any) -> AsyncIterator[tuple[Serving, httpx2.AsyncClient]]:
    """A gateway that serves the console, and a browser without a cookie."""
    given = {"http": {"console": True}, **sections}
    mail = ScriptedServer([tool("send_mail", "Send an email.")])
    async with serving(folder, {"mail": mail}, **given) as served:
        base = served.url.removesuffix("/mcp")
        async with httpx2.AsyncClient(base_url=base, timeout=60) as browser:
            yield served, browser


async def log_in(browser: httpx2.AsyncClient, token: str, origin: str = "") -> httpx2.Response:
    """Send the form with the token."""
    headers = {"Origin": origin or str(browser.base_url).rstrip("/")}
    return await browser.post(f"{ROOT}/login", data={"owner": token}, headers=headers)


async def test_the_owners_token_opens_every_page_until_it_is_revoked(tmp_path: Path) -> None:
    store = tokens_in(tmp_path)
    made = store.add()
    async with served_console(tmp_path) as (_, browser):
        door = await browser.get(ROOT)
        assert (door.status_code, 'name="owner"' in door.text) == (200, True)
        opened = await log_in(browser, made.text)
        assert opened.status_code == 303
        root = opened.headers["location"].rstrip("/")
        assert "send_mail" in (await browser.get(f"{root}/tools")).text
        listed = [(await browser.get(f"{root}/lists.json?mode={mode}")).json()["listed"] for mode in MODES]
        assert listed == [0, 1]
        assert (await browser.get(f"{root}/servers.json")).json()["status"]["servers"][0]["server"] == "mail"
        store.revoke([made.key_id])
        gone = await browser.get(f"{root}/tools")
        assert (gone.status_code, "send_mail" in gone.text) == (403, False)


async def test_the_overview_tells_of_the_gateway_that_serves_it(tmp_path: Path) -> None:
    token = tokens_in(tmp_path).add().text
    async with served_console(tmp_path) as (served, browser):
        page = await browser.get((await log_in(browser, token)).headers["location"])
        assert f"The gateway at {served.url} has run for" in " ".join(page.text.split())
        assert "No gateway runs" not in page.text


async def test_a_link_of_the_command_opens_it_on_this_machine(tmp_path: Path) -> None:
    async with served_console(tmp_path) as (served, browser):
        link = await link_of(tmp_path)
        assert link.startswith(served.url.removesuffix("/mcp"))
        opened = await browser.get(link)
        assert (await browser.get(opened.headers["location"])).status_code == 200
        assert (await browser.get(link)).status_code == 403


async def link_of(folder: Path) -> str:
    async def found() -> str | None:
        answers = await ask_gateways(paths_in(folder), CONSOLE, 20)
        return next((each["url"] for each in answers.results), None)

    await eventually(lambda: is_there(found))
    link = await found()
    assert link is not None
    return link


async def is_there(found: Any) -> bool:
    return await found() is not None


async def test_a_stream_ends_with_the_token_that_opened_it(tmp_path: Path) -> None:
    store = tokens_in(tmp_path)
    made = store.add()
    async with served_console(tmp_path) as (_, browser):
        root = (await log_in(browser, made.text)).headers["location"].rstrip("/")
        async with browser.stream("GET", f"{root}/events") as events:
            lines = events.aiter_lines()
            assert (await anext(lines)).startswith("retry")
            store.revoke([made.key_id])
            async for _ in lines:
                pass


async def test_open_pages_end_in_order_with_the_gateway(tmp_path: Path) -> None:
    token = tokens_in(tmp_path).add().text
    begun, ended = anyio.Event(), anyio.Event()

    async def follow(base: httpx2.URL) -> None:
        async with httpx2.AsyncClient(base_url=base, timeout=60) as page:
            root = (await log_in(page, token)).headers["location"].rstrip("/")
            async with page.stream("GET", f"{root}/events") as events:
                async for _ in events.aiter_lines():
                    begun.set()
        ended.set()

    async with anyio.create_task_group() as tasks:
        async with served_console(tmp_path) as (_, browser):
            tasks.start_soon(follow, browser.base_url)
            await begun.wait()
        with anyio.fail_after(60):
            await ended.wait()


async def test_without_the_setting_nothing_is_served_there(tmp_path: Path) -> None:
    made = tokens_in(tmp_path).add()
    async with served_console(tmp_path, http={}) as (_, browser):
        assert (await browser.get(ROOT)).status_code == 404
        assert (await log_in(browser, made.text)).status_code == 404
        answers = await ask_gateways(paths_in(tmp_path), CONSOLE, 20)
        assert [each["url"] for each in answers.results] in ([], [None])


class Network:
    """The console of a gateway that others reach as mcp.example.com, behind a proxy with TLS."""

    def __init__(self, folder: Path, address: str = "203.0.113.7") -> None:
        self.store = tokens_in(folder)
        self.access = ConsoleAccess(tokens=OwnerTokens(self.store, lambda _: None))
        hosts = KnownHosts(["127.0.0.1", "localhost"], ["mcp.example.com"])
        app = Console(NothingRuns(folder), self.access, hosts).app()
        transport = httpx2.ASGITransport(app=app, client=(address, 40_000))
        self.browser = httpx2.AsyncClient(transport=transport, base_url=PUBLIC)


async def test_over_a_network_a_link_opens_nothing(tmp_path: Path) -> None:
    remote = Network(tmp_path)
    link = remote.access.new_link()
    for headers in ({}, {"Host": "127.0.0.1:8765"}):
        refused = await remote.browser.get(link, headers=headers)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    proxied = Network(tmp_path, "127.0.0.1")
    assert (await proxied.browser.get(proxied.access.new_link())).status_code == 403


async def test_the_cookie_of_https_is_for_https_alone(tmp_path: Path) -> None:
    remote = Network(tmp_path)
    token = remote.store.add().text
    cookie = (await log_in(remote.browser, token)).headers["set-cookie"].casefold()
    assert {"httponly", "samesite=strict", "secure"} <= {part.strip() for part in cookie.split(";")}
    plain = await log_in(remote.browser, token, "http://mcp.example.com")
    assert (plain.status_code, "secure" in plain.headers["set-cookie"].casefold()) == (303, False)


async def test_wrong_tokens_open_nothing_and_are_limited(tmp_path: Path) -> None:
    remote = Network(tmp_path)
    token = remote.store.add().text
    ended = remote.store.add(expires_at=datetime.now(UTC) - timedelta(seconds=1)).text
    key = KeyStore(paths_in(tmp_path), "test").add("ada").text
    for wrong in ("", "guess", key, ended, token[:-1], token.upper()):
        refused = await log_in(remote.browser, wrong)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    answers = [(await log_in(remote.browser, "guess")).status_code for _ in range(MAX_GUESSES)]
    assert answers[-1] == 429
    assert (await log_in(remote.browser, token)).status_code == 429


async def test_a_login_ignores_a_session_that_the_browser_brought_along(tmp_path: Path) -> None:
    remote = Network(tmp_path)
    token = remote.store.add().text
    first = (await log_in(remote.browser, token)).headers["set-cookie"]
    remote.browser.cookies.clear()
    fixed = {"Cookie": "pml_console=chosen", "Origin": PUBLIC}
    opened = await remote.browser.post(f"{ROOT}/login", data={"owner": token}, headers=fixed)
    assert "chosen" not in opened.headers["set-cookie"]
    assert opened.headers["set-cookie"] != first
    remote.browser.cookies.clear()
    page = await remote.browser.get(f"{remote.access.root}/", headers={"Cookie": "pml_console=chosen"})
    assert page.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"Origin": ""}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_no_other_site_logs_in(tmp_path: Path, headers: dict[str, str]) -> None:
    remote = Network(tmp_path)
    token = remote.store.add().text
    given = {"Origin": PUBLIC, **headers}
    refused = await remote.browser.post(f"{ROOT}/login", data={"owner": token}, headers=given)
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)


async def test_pages_of_one_replica_are_served_through_every_other(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    token = tokens_in(tmp_path / "0").add().text
    mail = ScriptedServer([tool("send_mail", "Send an email.")])
    async with (
        replicas(tmp_path, {"mail": mail}, http={"console": True}, **shared_sections) as served,
        httpx2.AsyncClient(base_url=served[0].url.removesuffix("/mcp"), timeout=60) as browser,
    ):
        other = served[1].url.removesuffix("/mcp")
        root = (await log_in(browser, token)).headers["location"].rstrip("/")
        for base in (other, str(browser.base_url).rstrip("/")):
            page = await browser.get(f"{base}{root}/tools")
            assert (page.status_code, "send_mail" in page.text) == (200, True)
            change, asked = forms((await browser.get(f"{base}{root}/server?name=mail")).text)[0]
            sent = [
                await browser.post(f"{base}{root}/do/{change}", data=asked, headers={"Origin": origin})
                for origin in (base, "https://evil.test")
            ]
            # This gateway has no file to change: the form itself was read.
            assert [each.status_code for each in sent] == [400, 403]
            async with browser.stream("GET", f"{base}{root}/events") as events:
                assert (await anext(events.aiter_lines())).startswith("retry")
        async with httpx2.AsyncClient(base_url=other) as stranger:
            assert (await stranger.get(f"{root}/tools")).status_code == 403
            gone = await stranger.get(f"{ROOT}/{'0' * 12}-gone/tools")
            assert (gone.status_code, f'href="{ROOT}"' in gone.text) == (403, True)
