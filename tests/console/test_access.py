from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from pml_gateway.console.access import COOKIE, LINK_SECONDS, ConsoleAccess
from pml_gateway.console.app import Console
from tests.console.pages import BASE, NothingRuns, visitor

pytestmark = pytest.mark.anyio


def opened(access: ConsoleAccess) -> httpx2.AsyncClient:
    return visitor(Console(NothingRuns(Path("no-such-folder")), access).app())


async def session(client: httpx2.AsyncClient, access: ConsoleAccess) -> dict[str, str]:
    """The header of a browser that has opened the link."""
    answer = await client.get(access.new_link())
    client.cookies.clear()
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


async def test_a_link_works_once() -> None:
    access = ConsoleAccess()
    link = access.new_link()
    async with opened(access) as client:
        first, again = await client.get(link), await client.get(link)
    assert first.status_code == 303
    assert first.headers["location"] == f"{access.root}/"
    assert again.status_code == 403
    assert "set-cookie" not in again.headers


async def test_a_link_ends_after_five_minutes() -> None:
    now = [0.0]
    access = ConsoleAccess(clock=lambda: now[0])
    link = access.new_link()
    now[0] = LINK_SECONDS + 1
    async with opened(access) as client:
        assert (await client.get(link)).status_code == 403


async def test_a_new_link_replaces_the_one_before() -> None:
    access = ConsoleAccess()
    before, after = access.new_link(), access.new_link()
    async with opened(access) as client:
        assert (await client.get(before)).status_code == 403
        assert (await client.get(after)).status_code == 303


@pytest.mark.parametrize("guess", ["", "?link=", "?link=guess", "?link=%C3%A9", "?link=a&link=b"])
async def test_a_wrong_guess_opens_nothing_and_leaves_the_link_usable(guess: str) -> None:
    access = ConsoleAccess()
    link = access.new_link()
    async with opened(access) as client:
        assert (await client.get(f"/console{guess}")).status_code == 403
        assert (await client.get(link)).status_code == 303


async def test_the_cookie_is_for_pages_of_this_console_alone() -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        cookie = (await client.get(access.new_link())).headers["set-cookie"]
    attributes = {part.strip().casefold() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", f"path={access.root}".casefold()} <= attributes


async def test_a_browser_sends_the_cookie_to_no_other_port() -> None:
    """Browsers keep cookies apart by host and path, but not by port; so the path cannot be guessed."""
    access, other = ConsoleAccess(), ConsoleAccess()
    assert access.root != other.root
    async with opened(other) as client:
        stolen = await session(opened(access), access)
        assert (await client.get(f"{other.root}/", headers=stolen)).status_code == 403
        assert (await client.get(f"{access.root}/", headers=stolen)).status_code == 403


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f"{COOKIE}=guess", f"{COOKIE}=é", "other=1"])
async def test_no_page_opens_without_the_session(cookie: str) -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        for path in ("", "overview", "servers.json", "events", "static/console.css"):
            headers = [(b"Cookie", cookie.encode())]
            assert (await client.get(f"{access.root}/{path}", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/console/", "/console/x/", "/", "/mcp", "/console/../console/x/", "//console", "/console%2Fx", "/CONSOLE"],
)
async def test_no_other_path_leads_to_a_page(path: str) -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        headers = await session(client, access)
        assert (await client.get(path, headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:7000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_pages_of_other_sites_read_nothing(headers: dict[str, str]) -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        own = await session(client, access)
        assert (await client.get(f"{access.root}/servers", headers=own)).status_code == 200
        assert (await client.get(f"{access.root}/servers", headers=own | headers)).status_code == 403
        link = access.new_link()
        assert (await client.get(link, headers=headers)).status_code == 403
        assert (await client.get(link)).status_code == 303


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_is_changed_by_a_page(method: str) -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        own = await session(client, access)
        answer = await client.request(method, f"{access.root}/servers", headers=own)
        assert answer.status_code == 405
        assert (await client.request(method, access.new_link())).status_code == 405


async def test_every_answer_forbids_frames_inline_scripts_and_other_hosts() -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        own = await session(client, access)
        for path in ("/", "/servers", "/nothing", "/servers.json", "/static/console.js"):
            headers = (await client.get(access.root + path, headers=own)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["..%2Fapp.py", "../app.py", "console.css/..", "", "unknown.css"])
async def test_no_other_file_is_served(name: str) -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        own = await session(client, access)
        assert (await client.get(f"{access.root}/static/{name}", headers=own)).status_code == 404


async def test_where_no_gateway_runs_the_page_says_so() -> None:
    access = ConsoleAccess()
    async with opened(access) as client:
        own = await session(client, access)
        assert "No server is configured." in (await client.get(f"{BASE}{access.root}/servers", headers=own)).text
