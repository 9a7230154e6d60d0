"""The pages of what clients did: hours, pages, workflows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.console.workflow_graph import graph_of
from tests.console.pages import Browser, console
from tests.console.test_pages import mail
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEPS = [
    {"id": "send", "tool": "mail__send_mail", "arguments": {}},
    {"id": "again", "tool": "mail__send_mail", "arguments": {}},
    {"id": "lost", "tool": "mail__lost", "arguments": {}},
    {"id": "delete", "tool": "mail__delete_mail", "arguments": {}, "depends_on": ["send", "again"]},
]


async def shown(browser: Browser, path: str, count: int) -> dict[str, Any]:
    """The page as JSON, once it has so many rows."""
    found: dict[str, Any] = {}

    async def is_written() -> bool:
        found.update((await browser.page(path)).json())
        return len(found["rows"]) >= count

    await eventually(is_written)
    return found


async def test_a_workflow_is_shown_as_its_graph_and_on_a_line_of_time(tmp_path: Path) -> None:
    steps = [each for each in STEPS if each["id"] != "lost"]
    async with console(tmp_path, {"mail": mail()}, activity={"arguments": "masked"}) as browser:
        await browser.served.call("execute_workflow", {"steps": steps})
        rows = (await shown(browser, "activity.json", 4))["rows"]
        head = next(row for row in rows if row["target"] == "execute_workflow")
        found = (await browser.page(f"access.json?id={head['id']}")).json()
        page = (await browser.page(f"access?id={head['id']}")).text
        of_programs = [(await browser.page(f"activity.json?program={name}")).json()["rows"] for name in ("raw", "x")]
    assert [[step["id"] for step in layer] for layer in found["graph"]] == [["send", "again"], ["delete"]]
    states = {step["id"]: [call["code"] for call in step["calls"]] for layer in found["graph"] for step in layer}
    assert states == {"send": ["OK"], "again": ["OK"], "delete": ["OK"]}
    assert len({call["id"] for layer in found["graph"] for step in layer for call in step["calls"]}) == 3
    assert "after send, again" in page
    assert [len(each) for each in of_programs] == [len(rows), 0]
    assert "program=raw" in page
    assert page.count("<rect") == 4
    assert [step["is_inner"] for step in found["steps"]] == [False, True, True, True]


async def test_where_arguments_are_not_kept_there_is_no_graph_of_steps(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        await browser.served.call("execute_workflow", {"steps": STEPS[:1]})
        rows = (await shown(browser, "activity.json", 2))["rows"]
        found = (await browser.page(f"access.json?id={rows[0]['id']}")).json()
    assert found["graph"] == []
    assert len(found["steps"]) == 2


def test_a_request_without_a_workflow_has_no_graph() -> None:
    assert graph_of([], Settings()) == []


async def test_an_hour_is_chosen_by_a_link_and_a_call_passed_on_is_told_once(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        await browser.served.call("search_tools", {"query": "send an email"})
        await browser.served.call("call_tool", {"name": "mail__send_mail", "arguments": {}})
        await shown(browser, "activity.json", 2)
        page = (await browser.page("activity")).text
        [hour] = re.findall(r'<li><a href="([^"]+)" title="3 uses, 0 failed">', page)
        of_hour = (await browser.client.get(hour.replace("&amp;", "&").replace("activity?", "activity.json?"))).json()
        nothing = (await browser.page("activity.json?until=2020-01-01T09:00")).json()
        refused = await browser.page("activity?from=nine")
    assert [row["kind"] for row in of_hour["rows"]] == ["call", "search"]
    assert nothing["rows"] == []
    assert (refused.status_code, "invalid time &#39;nine&#39;" in refused.text) == (502, True)


async def test_a_server_and_the_overview_have_figures_of_calls(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        for _ in range(3):
            await browser.served.call("mail__send_mail", {})
        await shown(browser, "activity.json", 3)
        overview = (await browser.page("overview.json")).json()
        server = (await browser.page("server.json?name=mail")).json()
        page = (await browser.page("servers")).text
    assert overview["calls"]["hour"] == {"calls": 3, "failed": 0, "refused": 0}
    assert overview["today"]["calls"] == 3
    figures = server["figures"]["mail"]
    assert (figures["calls"], figures["failed"], figures["last_fault"]) == (3, 0, None)
    assert 0 < figures["p50"] <= figures["p95"]
    assert "p95" in page
