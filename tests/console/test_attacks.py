"""Attacks on the console by requests: every page and every change, without the cookie, the link, the form or the site.

New pages and changes are attacked as soon as they are in `PAGES` and `CHANGES`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from pml_gateway.console.access import COOKIE, ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.console.changes import CHANGES
from pml_gateway.console.forms import MAX_BODY
from pml_gateway.console.pages import PAGES
from pml_gateway.gateway.approval_requests import MAX_GUESSES
from pml_gateway.gateway.approvals import hashed_passphrase
from tests.console.pages import BASE, NothingRuns, Visitor, console, visitor
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CONFIG = "servers:\n  mail: {command: mail-server}\n"
FORM = "application/x-www-form-urlencoded"

PATHS = [*PAGES, *(f"{page}.json" for page in PAGES), "", "events", "static/console.js", "static/console.css"]
"""Everything that a browser with a session may read."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Visitor, NothingRuns]]:
    """A console, the owner's browser, and the configuration that nothing may change."""
    source = NothingRuns(folder)
    source.paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    source.paths.config_file.write_text(CONFIG)
    access = ConsoleAccess()
    async with visitor(Console(source, access).app()) as client:
        await client.get(access.new_link())
        yield Visitor(client, access), source
    assert source.paths.config_file.read_text() == CONFIG


def filled(change: str, token: str) -> dict[str, str]:
    """Return what a form of a change sends."""
    values = {name: each.choices[0] if each.choices else "mail" for name, each in CHANGES[change].fields.items()}
    return values | {"token": token}


def encoded(fields: Mapping[str, str]) -> bytes:
    return "&".join(f"{quote(name)}={quote(value)}" for name, value in fields.items()).encode()


FORGED: dict[str, tuple[set[int], dict[str, str]]] = {
    "of another site": ({403}, {"Origin": "https://evil.example"}),
    "of a sandboxed frame": ({403}, {"Origin": "null"}),
    "of no origin": ({403}, {"Origin": ""}),
    "of another port": ({403}, {"Origin": "http://127.0.0.1:7001"}),
    "of another name of this machine": ({403}, {"Origin": "http://localhost:7000"}),
    "of an origin with a path": ({403}, {"Origin": f"{BASE}/console"}),
    "caused by another site": ({403}, {"Sec-Fetch-Site": "cross-site"}),
    "caused by another port": ({403}, {"Sec-Fetch-Site": "same-site"}),
    "to a name that was bound anew": ({403}, {"Host": "evil.example"}),
    "to a name with another in it": ({403}, {"Host": "127.0.0.1.evil.example:7000"}),
    "without the cookie": ({403}, {"Cookie": ""}),
    "with a guessed cookie": ({403}, {"Cookie": f"{COOKIE}=guess"}),
    "as plain text": ({415}, {"Content-Type": "text/plain"}),
    "as plain text that says it is a form": ({415}, {"Content-Type": f"text/plain; {FORM}"}),
    "as several parts": ({415}, {"Content-Type": "multipart/form-data; boundary=x"}),
    "as JSON": ({415}, {"Content-Type": "application/json"}),
    "of no type": ({415}, {"Content-Type": ""}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_forged_form_changes_nothing(tmp_path: Path, change: str) -> None:
    async with opened(tmp_path) as (browser, _):
        path, body = f"{browser.access.root}/do/{change}", encoded(filled(change, browser.access.form_token))
        for name, (statuses, headers) in FORGED.items():
            given = {"Origin": BASE, "Content-Type": FORM} | headers
            answer = await browser.client.post(path, content=body, headers=given)
            assert answer.status_code in statuses, name


@pytest.mark.parametrize("change", CHANGES)
async def test_a_form_without_the_token_of_its_console_changes_nothing(tmp_path: Path, change: str) -> None:
    async with opened(tmp_path) as (browser, _):
        other, right = ConsoleAccess(), browser.access.form_token
        for token in ("", "guess", other.form_token, right[:-1], right.upper(), f"{right} ", "\0", "é"):
            answer = await browser.do(change, filled(change, token))
            assert answer.status_code == 403, token
        fields = filled(change, right)
        del fields["token"]
        body = encoded(fields)
        for more in (b"", b"&Token=" + right.encode(), b"&token[]=" + right.encode()):
            headers = {"Origin": BASE, "Content-Type": FORM}
            path = f"{browser.access.root}/do/{change}?token={right}"
            answer = await browser.client.post(path, content=(body + more).removeprefix(b"&"), headers=headers)
            assert answer.status_code == 403


@pytest.mark.parametrize("change", CHANGES)
async def test_no_other_method_changes_anything(tmp_path: Path, change: str) -> None:
    async with opened(tmp_path) as (browser, _):
        fields = filled(change, browser.access.form_token)
        path = f"{browser.access.root}/do/{change}"
        override = {"X-HTTP-Method-Override": "POST", "X-HTTP-Method": "POST", "X-Method-Override": "POST"}
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            answer = await browser.client.request(
                method, path, params=fields | {"_method": "POST"}, headers={"Origin": BASE} | override
            )
            assert answer.status_code == 405, method
            assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_form_that_is_too_large_or_twofold_changes_nothing(tmp_path: Path, change: str) -> None:
    async with opened(tmp_path) as (browser, _):
        path, right = f"{browser.access.root}/do/{change}", encoded(filled(change, browser.access.form_token))
        headers = {"Origin": BASE, "Content-Type": FORM}
        for body, status in (
            (right + b"&back=" + b"x" * MAX_BODY, 413),
            (right + b"&back=servers&back=tools", 400),
            (right + b"".join(b"&x%d=1" % number for number in range(100)), 400),
            (right + b"&x=%ff", 400),
            (right + b"&surplus=1", 400),
        ):
            assert (await browser.client.post(path, content=body, headers=headers)).status_code == status


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "servers#//evil.example",
        "servers?x=1\r\nSet-Cookie: pml_console=fixed",
        "servers\r\nLocation: https://evil.example",
        "servers\0",
        "../../mcp",
        "do/undo",
        "servers/../../x",
        "%2e%2e/x",
        "@evil.example",
        "x" * 5000,
    ],
)
async def test_a_change_leads_to_no_other_place(tmp_path: Path, back: str) -> None:
    async with opened(tmp_path) as (browser, _):
        made = await browser.do("enable", {"name": "mail", "back": back})
        assert made.status_code == 303
        assert httpx2.URL(made.headers["location"]).path in [f"{browser.access.root}/{page}" for page in PAGES]
        assert "set-cookie" not in made.headers
        asked = await browser.do("disable", {"name": "mail", "back": back})
        assert "evil.example" not in asked.text
        assert "javascript:" not in asked.text


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_read_without_the_session_or_by_another_site(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path) as (browser, _):
        place, other = f"{browser.access.root}/{path}", ConsoleAccess()
        async with visitor(Console(NothingRuns(tmp_path), other).app()) as neighbour:
            await neighbour.get(other.new_link())
            stolen = "; ".join(f"{name}={value}" for name, value in neighbour.cookies.items())
        refused: list[dict[str, str]] = [
            {"Cookie": ""},
            {"Cookie": f"{COOKIE}="},
            {"Cookie": stolen},
            {"Cookie": "; ".join(f"{COOKIE}=guess{number}" for number in range(50))},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
            {"Origin": "https://evil.example"},
            {"Host": "evil.example"},
            {"Host": "localhost.evil.example"},
            {"Host": "127.0.0.1:7000@evil.example"},
        ]
        for headers in refused:
            answer = await browser.client.get(place, headers=headers)
            assert answer.status_code == 403, headers
            assert "pml" not in answer.text.replace("pml console", "")
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("page", PAGES)
async def test_no_trick_with_the_path_leads_past_the_session(tmp_path: Path, page: str) -> None:
    async with opened(tmp_path) as (browser, _):
        root = browser.access.root
        secret = root.rpartition("/")[2]
        for path in (
            f"/console/{secret}x/{page}",
            f"/console/{secret[:-1]}/{page}",
            f"/console/%2e/{page}",
            f"/console//{secret}/{page}",
            f"//console/{secret}/{page}",
            f"/console%2F{secret}%2F{page}",
            f"/console/{quote(secret + '/..')}/{page}",
            f"/CONSOLE/{secret}/{page}",
            f"/console/{secret};/{page}",
            f"/console/{secret}%00/{page}",
            f"/console\\{secret}\\{page}",
            f"/{page}",
        ):
            assert (await browser.client.get(path)).status_code in (403, 404), path
        browser.client.cookies.clear()
        for path in (f"{root}/{page}", f"{root}//{page}", f"{root}/static/../{page}", f"{root}/%2e%2e/{page}"):
            assert (await browser.client.get(path)).status_code == 403, path


@pytest.mark.parametrize("path", [*PATHS, "nope", "nope.json", "static/nope", "static/..%2F..%2Fapp.py", "do/nope"])
async def test_every_answer_is_kept_by_nobody_framed_by_nobody_and_runs_nothing(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path) as (browser, _):
        if path == "events":
            # A stream has no end; its headers are those of the answer to one without the cookie.
            browser.client.cookies.clear()
        answer = await browser.client.get(f"{browser.access.root}/{path}?callback=alert")
        head = answer.headers
        assert (head["cache-control"], head["x-content-type-options"]) == ("no-store", "nosniff")
        assert (head["x-frame-options"], head["cross-origin-opener-policy"]) == ("DENY", "same-origin")
        assert head["cross-origin-resource-policy"] == "same-origin"
        policy = dict(part.strip().split(" ", 1) for part in head["content-security-policy"].split(";"))
        assert (policy["default-src"], policy["frame-ancestors"], policy["base-uri"]) == ("'none'",) * 3
        assert {policy[each] for each in ("script-src", "style-src", "form-action", "connect-src")} == {"'self'"}
        assert not [name for name in head if name.startswith("access-control-") or name in ("server", "etag")]
        if path.endswith(".json"):
            assert head["content-type"] == "application/json"
            assert answer.content[:1] == b"{"


@pytest.mark.parametrize("path", PATHS)
async def test_a_look_at_the_head_has_no_body_and_other_methods_are_refused(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path) as (browser, _):
        place = f"{browser.access.root}/{path}"
        if path != "events":
            assert (await browser.client.head(place)).content == b""
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
            answer = await browser.client.request(method, place, headers={"Origin": BASE})
            assert answer.status_code == 405
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_a_link_is_neither_guessed_nor_replayed_nor_fixed(tmp_path: Path) -> None:
    access = ConsoleAccess()
    async with visitor(Console(NothingRuns(tmp_path), access).app()) as client:
        link = access.new_link()
        for number in range(200):
            assert (await client.get(f"/console?link={number:043}")).status_code == 403
        assert (await client.get(link, headers={"Cookie": f"{COOKIE}=fixed"})).headers["set-cookie"].count("fixed") == 0
        replayed = await client.get(link)
        assert (replayed.status_code, "set-cookie" in replayed.headers) == (403, False)
        client.cookies.clear()
        assert (await client.get(f"{access.root}/", headers={"Cookie": f"{COOKIE}=fixed"})).status_code == 403
        first, second = [(await client.get(access.new_link())).headers["set-cookie"] for _ in range(2)]
        assert first != second


async def test_the_secret_path_reaches_no_other_site_and_no_page_shows_the_cookie(tmp_path: Path) -> None:
    async with opened(tmp_path) as (browser, _):
        session = browser.client.cookies[COOKIE]
        for path in PATHS:
            if path != "events":
                answer = await browser.client.get(f"{browser.access.root}/{path}")
                assert session not in answer.text
                assert answer.headers["referrer-policy"] in ("no-referrer", "same-origin")


async def test_the_passphrase_of_approvals_cannot_be_guessed_by_forms(tmp_path: Path) -> None:
    rules = [{"match": {"tool": "mail:send"}, "do": "ask"}]
    approvals = {"hold_seconds": 0, "notify": False, "secret": hashed_passphrase("correct horse battery")}
    server = ScriptedServer([tool("send")])
    async with console(tmp_path, {"mail": server}, rules=rules, approvals=approvals) as browser:
        await until(lambda: browser.served.gateway.approvals.can_be_answered)
        await browser.served.call("mail__send")
        [row] = await browser.served.gateway.approvals.shown()
        for number in range(MAX_GUESSES + 1):
            form = {"id": row["id"], "scope": "tool", "passphrase": f"guess {number}"}
            fields = {"token": browser.access.form_token} | form
            path = f"{browser.access.root}/do/approve"
            answer = await browser.client.post(path, data=fields, headers={"Origin": BASE})
            assert f"guess {number}" not in answer.text
        [after] = await browser.served.gateway.approvals.shown()
        assert after["state"] == "denied"
        assert server.calls == []
