"""The page about a client's list: settings are tried before they are written, and it agrees with the command."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.console.pages import console, hidden_fields
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio

GATEWAY = {"tools_exposure": "full_proxy", "blacklisted_tools": ["mail:delete_*"]}

SETTINGS = {
    "gateway": GATEWAY,
    "clients": {"bot": {"key": "${env:BOT_KEY}", "deny": ["mail:send_*"]}},
    "sets": {"sending": {"include": ["mail:send_*"]}},
}


def mail() -> ScriptedServer:
    return ScriptedServer([tool(name) for name in ("send_mail", "read_mail", "delete_mail")])


async def test_a_client_or_a_set_is_picked_and_its_list_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOT_KEY", "k" * 40)
    async with console(tmp_path, {"mail": mail()}, **SETTINGS) as browser:
        page = (await browser.page("lists?client=bot")).text
        assert "<option selected>bot</option>" in page
        for query, names in (
            ({}, {"mail__send_mail", "mail__read_mail"}),
            ({"client": "bot"}, {"mail__read_mail"}),
            ({"set": "sending"}, {"mail__send_mail"}),
        ):
            found = (await browser.page(f"lists.json?{urlencode(query)}")).json()
            assert {row["name"] for row in found["tools"] if row["listed"]} == names, query
            assert found["tokens"] > 0


async def test_settings_are_tried_then_written_with_their_difference(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}, gateway=GATEWAY) as browser:
        query = urlencode({"try.gateway.blacklisted_tools": "mail:read_*\r\nmail:send_*"})
        found = (await browser.page(f"lists.json?{query}")).json()
        assert found["change"]["comes_in"] == ["mail__delete_mail"]
        assert found["change"]["goes_out"] == ["mail__read_mail", "mail__send_mail"]
        assert [row["moves"] for row in found["rows"]["rows"]] == ["in", "out", "out"]
        page = (await browser.page(f"lists?{query}")).text
        assert "1 tool would come in and 2 tools go out" in page
        fields = hidden_fields(page, "settings")
        assert json.loads(fields["values"]) == {"gateway.blacklisted_tools": ["mail:read_*", "mail:send_*"]}
        file = paths_in(tmp_path).config_file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("gateway: {blacklisted_tools: ['mail:delete_*']}\n")
        asked = (await browser.do("settings", fields)).text
        assert "+gateway: {blacklisted_tools: [&#34;mail:read_*&#34;, &#34;mail:send_*&#34;]}" in asked
        assert (await browser.do("settings", hidden_fields(asked))).status_code == 303
        assert "read_*" in file.read_text()


@pytest.mark.slow
async def test_what_cannot_be_tried_is_said_beside_the_fields(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}, gateway=GATEWAY) as browser:
        page = await browser.page("lists?try.gateway.hybrid.semantic_threshold=<b>")
        same = await browser.page("lists?try.gateway.hybrid.semantic_threshold=0.6")
        broken = await browser.do("settings", {"values": "{"})
    assert page.status_code == 200
    assert "should be a number" in page.text
    assert 'value="&lt;b&gt;"' in page.text
    assert "This is what is configured." in same.text
    assert (broken.status_code, "no settings are given" in broken.text) == (400, True)
