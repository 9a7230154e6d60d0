from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pml_gateway.storage.replicas import Replicas
from tests.console.pages import Browser, NothingRuns, console, console_of, hidden_fields, opened_by
from tests.support.replicas import replicas, replicas_of, shared_sections
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>"


class Rows(HTMLParser):
    """The rows of the tables of a page, and its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._is_in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._is_in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.rows[-1][-1] += data.strip()

    @property
    def body(self) -> list[list[str]]:
        """The rows below the heads of tables."""
        return [
            row
            for row in self.rows
            if row and row[0] not in ("Tool", "Server", "Mode", "Client", "Process", "Used", "When")
        ]


def mail() -> ScriptedServer:
    return ScriptedServer(
        [tool("send_mail", "Send an email to a person."), tool("delete_mail", "Delete an email for good.")]
    )


async def test_the_list_of_a_client_has_a_reason_for_every_tool(tmp_path: Path) -> None:
    gateway = {"tools_exposure": "hybrid", "intent": "send an email", "blacklisted_tools": ["mail:delete_*"]}
    async with console(tmp_path, {"mail": mail()}, gateway=gateway) as browser:
        page = Rows((await browser.page("lists")).text)
        found = (await browser.page("lists.json")).json()
    rows = {row[0]: row for row in page.body}
    assert rows["mail__send_mail"][1] == "yes"
    assert (rows["mail__delete_mail"][1], rows["mail__delete_mail"][4]) == ("no", "no")
    assert "mail:delete_*" in rows["mail__delete_mail"][2]
    assert {row["name"]: row["listed"] for row in found["rows"]["rows"]} == {
        "mail__send_mail": True,
        "mail__delete_mail": False,
    }


async def test_a_search_shows_hits_with_their_evidence(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        page = Rows((await browser.page("tools?q=send+an+email")).text)
    assert page.body[0][0] == "mail__send_mail"
    assert float(page.body[0][1]) > 0


async def test_a_server_has_its_state_and_its_tools(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        servers = Rows((await browser.page("servers")).text)
        [server] = [
            str(attributes["href"]) for _, attributes in servers.elements if "name=mail" in str(attributes.get("href"))
        ]
        one = Rows((await browser.client.get(server)).text)
    assert (*servers.body[0][:2], servers.body[0][6]) == ("mail", "ready", "2")
    assert [row[0] for row in one.body if row[0].startswith("mail__")] == ["mail__delete_mail", "mail__send_mail"]


async def test_long_lists_come_in_pages_that_together_have_every_row(tmp_path: Path) -> None:
    server = ScriptedServer([tool(f"tool_{number:03}") for number in range(250)])
    seen: list[str] = []
    async with console(tmp_path, {"up": server}) as browser:
        path: str | None = f"{browser.root}/tools"
        while path is not None:
            answer = await browser.client.get(path)
            assert len(answer.content) < 200_000
            page = Rows(answer.text)
            seen += [row[0] for row in page.body]
            links = re.findall(r'href="([^"]+)">Next<', answer.text)
            path = links[0].replace("&amp;", "&") if links else None
    assert sorted(seen) == [f"up__tool_{number:03}" for number in range(250)]


@pytest.mark.parametrize("page", ["0", "-1", "99", "x", "9" * 400, "\u0663"])
async def test_a_page_that_does_not_exist_is_the_nearest_one(tmp_path: Path, page: str) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        answer = await browser.page(f"tools?page={quote(page)}")
    assert answer.status_code == 200
    assert len(Rows(answer.text).body) == 2


async def test_what_a_server_wrote_is_text_on_every_page(tmp_path: Path) -> None:
    server = ScriptedServer(
        [tool("a", MARKUP, {"x": {"type": "string", "description": MARKUP}})], instructions=MARKUP, name=MARKUP
    )
    plain = {"script", "link", "meta"}
    async with console(tmp_path, {"up": server}) as browser:
        for path in (
            "overview",
            "servers",
            "server?name=up",
            "tools",
            f"tools?q={quote(MARKUP)}",
            "tool?name=up__a",
            f"lists?intent={quote(MARKUP)}&tool={quote(MARKUP)}",
            f"server?name={quote(MARKUP)}",
            f"tool?name={quote(MARKUP)}",
            f"lists?mode={quote(MARKUP)}",
            f"lists?client={quote(MARKUP)}",
            quote(MARKUP, safe=""),
        ):
            page = Rows((await browser.page(path)).text)
            names = [name for name, _ in page.elements]
            assert "img" not in names, path
            assert "b" not in names, path
            scripts = [attributes.get("src") for name, attributes in page.elements if name == "script"]
            assert scripts == [f"{browser.root}/static/console.js"], path
            assert not [a for n, attributes in page.elements for a in attributes if a.startswith("on")], path
            assert plain & set(names), path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("server?name=nope", "no server &#39;nope&#39;"),
        ("tool?name=nope", "no tool &#39;nope&#39;"),
        ("lists?mode=nope", "unknown mode &#39;nope&#39;"),
        ("lists?client=nope", "nope"),
    ],
)
async def test_what_does_not_exist_is_named(tmp_path: Path, path: str, said: str) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        answer = await browser.page(path)
    assert answer.status_code == 502
    assert said in answer.text


async def test_a_page_says_what_the_command_prints(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        first = (await browser.page("overview.json")).json()
        found = (await browser.page("overview.json")).json()
    assert first["costs"] is None  # counted once the page was sent
    assert [row["server"] for row in found["status"]["servers"]] == ["mail"]
    assert {row["mode"] for row in found["costs"]["modes"]} == {"meta_only", "semantic", "hybrid", "full_proxy"}


async def test_a_call_is_shown_with_its_whole_way_and_found_by_its_outcome(tmp_path: Path) -> None:
    gateway = {"blacklisted_tools": ["mail:delete_*"]}
    async with console(tmp_path, {"mail": mail()}, gateway=gateway) as browser:
        await browser.served.call("search_tools", {"query": "send an email"})
        await browser.served.call("mail__send_mail", {})
        await browser.served.call("mail__delete_mail", {})
        await recorded(browser, 2)
        page = Rows((await browser.page("activity?outcome=refused")).text)
        [href] = [str(each["href"]) for _, each in page.elements if "access?" in str(each.get("href"))]
        one = (await browser.client.get(href)).text
        unknown = await browser.page("access?id=99999")
    assert [row[2] for row in page.body] == ["mail__delete_mail"]
    assert "mail:delete_*" in page.body[0][5]
    assert "refused" in one
    assert "mail:delete_*" in one
    assert unknown.status_code == 502


async def recorded(browser: Browser, calls: int) -> None:
    """Wait until so many calls are recorded; they are written in the background."""

    async def is_written() -> bool:
        found = (await browser.page("activity.json?tool=mail__*")).json()
        return len(found["rows"]) >= calls

    await eventually(is_written)


async def test_pages_record_nothing_that_no_client_did(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        await browser.served.call("mail__send_mail", {})
        for page in ("overview", "servers", "lists", "tools", "server?name=mail"):
            assert (await browser.page(page)).status_code == 200
        await browser.served.call("mail__delete_mail", {})
        await recorded(browser, 2)
        found = (await browser.page("activity.json?show=calls")).json()
    assert [each["target"] for each in found["rows"]] == ["mail__delete_mail", "mail__send_mail"]


async def test_a_call_that_waits_is_shown_with_its_arguments_until_it_is_answered(tmp_path: Path) -> None:
    rules = [{"match": {"tool": "mail:delete_*"}, "do": "ask"}]
    async with console(
        tmp_path, {"mail": mail()}, rules=rules, approvals={"hold_seconds": 0, "notify": False}
    ) as browser:
        assert "No call and no definition waits" in (await browser.page("waiting")).text
        await browser.served.call("mail__delete_mail", {"id": MARKUP})
        page = await browser.page("waiting")
        [asked] = (await browser.page("waiting.json")).json()["rows"]["rows"]
    assert asked["calls"][0]["arguments"] == {"id": MARKUP}
    assert "img" not in [name for name, _ in Rows(page.text).elements]


async def test_the_overview_names_the_replicas(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        replicas(tmp_path, {"mail": mail()}, **shared_sections) as (one, _),
        console_of(one, tmp_path / "0") as browser,
    ):
        found = (await browser.page("overview.json")).json()
        page = (await browser.page("overview")).text
        other = Replicas(replicas_of(one).server, replicas_of(one).feed, "1", lambda: ("same", 0))
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 300)
            await other.serve_at("http://127.0.0.1:1")
        await replicas_of(one).all()
        differing = (await browser.page("overview")).text.partition(other.own.id)[2].partition("</tr>")[0]
    assert "its clock differs" in differing
    assert "serves no HTTP" not in differing
    [gateway] = found["status"]["gateways"]
    ids = {each["id"] for each in gateway["storage"]["replicas"]}
    assert len(ids) == 2
    assert set(re.findall(r'<tr><th scope="row">(\w{12})</th>', page)) == ids
    assert page.count("this one") == 1
    assert "another configuration" not in page
    assert "Redis has failed" not in page


async def test_a_change_of_one_replica_says_at_how_many_others_it_is_to_be_made(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    async with (
        replicas(tmp_path, {"mail": mail()}, 3, **shared_sections) as (one, *_),
        console_of(one, tmp_path / "0") as browser,
    ):
        file = tmp_path / "0" / "config.yaml"
        file.write_text("servers: {mail: {command: mail}}\n")
        asked = await browser.do("setting", {"key": "gateway.intent", "value": "mail"})
        made = await browser.do("setting", hidden_fields(asked.text))
        after = (await browser.client.get(made.headers["location"])).text
    assert "gateway.intent: changed." in after
    assert "Make the same change at 2 other replicas." in after


class _Listening(NothingRuns):
    """A gateway of which only its clients are known."""

    async def status(self) -> dict[str, Any]:
        """Return that two clients come over HTTP."""
        machine = {"age_seconds": 3.0, "clients": [], "http_clients": 2, "servers": []}
        return {"machine": machine, "gateways": [], "errors": [], "servers": []}


async def test_the_overview_counts_clients_over_http(tmp_path: Path) -> None:
    async with opened_by(_Listening(tmp_path)) as visitor:
        page = (await visitor.page("overview")).text
    assert "with 2 clients" in page
    assert "2 clients over HTTP" in page
    assert "No client is connected" not in page
