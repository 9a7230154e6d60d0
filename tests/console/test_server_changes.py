"""Servers changed by pages: added, removed, restarted, and told about in other words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pml_gateway.clients.removed import RemovedServers
from tests.console.pages import NothingRuns, form_of, forms, opened_by

pytestmark = pytest.mark.anyio

CONFIG = "servers:\n  mail: {command: mail-server}\n  # the other one\n  notes: {url: 'https://notes.example/mcp'}\n"
TOKEN = "ghp_" + "a1B2" * 9
BLOCK = json.dumps({"mcpServers": {"github": {"command": "npx", "args": ["-y", "gh"], "env": {"GITHUB_TOKEN": TOKEN}}}})


@pytest.fixture
def source(tmp_path: Path) -> NothingRuns:
    return NothingRuns.with_configuration(tmp_path, CONFIG)


async def test_a_pasted_block_is_added_and_its_credential_is_in_no_page(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        asked = await visitor.do("add", {"block": BLOCK})
        assert "Add github?" in asked.text
        assert "github runs, with your rights, npx -y gh" in asked.text
        assert "becomes ${env:GITHUB_TOKEN}, which is stored where only you can read it" in asked.text
        assert source.paths.config_file.read_text() == CONFIG
        assert not source.paths.secrets_file.exists()
        made = await visitor.do("add", form_of(asked.text))
        page = await visitor.client.get(made.headers["location"])
    assert "github added." in page.text
    assert not [text for text in (asked.text, page.text) if TOKEN in text]
    assert "${env:GITHUB_TOKEN}" in source.paths.config_file.read_text()
    assert TOKEN not in source.paths.config_file.read_text()
    assert TOKEN in source.paths.secrets_file.read_text()


async def test_a_block_that_is_refused_stays_to_be_corrected_but_for_credentials(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        harmless, secret = '{"command": "x"', f'{{"env": {{"GITHUB_TOKEN": "{TOKEN}"}}'
        first, second = await visitor.do("add", {"block": harmless}), await visitor.do("add", {"block": secret})
    assert (first.status_code, second.status_code) == (400, 400)
    assert "{&#34;command&#34;: &#34;x&#34;" in first.text
    assert TOKEN not in second.text


async def test_a_confirmation_without_what_was_given_asks_for_it_again(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        asked = form_of((await visitor.do("add", {"block": BLOCK})).text)
        assert (await visitor.do("add", asked)).status_code == 303
        again = await visitor.do("add", asked)
    assert again.status_code == 400
    assert "nothing is given" in again.text


async def test_a_url_needs_a_name(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        refused = await visitor.do("add", {"block": "https://mcp.linear.app/mcp"})
        asked = await visitor.do("add", {"block": "https://mcp.linear.app/mcp", "name": "linear"})
        made = await visitor.do("add", form_of(asked.text))
    assert "the server has no name" in refused.text
    assert "linear connects to https://mcp.linear.app/mcp" in asked.text
    assert made.status_code == 303
    assert "https://mcp.linear.app/mcp" in source.paths.config_file.read_text()


async def test_a_server_that_is_there_is_replaced_only_if_asked(source: NothingRuns) -> None:
    block = json.dumps({"mail": {"command": "other"}})
    async with opened_by(source) as visitor:
        refused = await visitor.do("add", {"block": block})
        asked = await visitor.do("add", {"block": block, "over": "replace servers of the same names"})
    assert "there is a server &#39;mail&#39; already" in refused.text
    assert "-  mail: {command: mail-server}" in asked.text


async def test_a_removed_server_is_remembered_as_removed(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        asked = await visitor.do("remove", {"name": "notes"})
        assert "Remove notes?" in asked.text
        assert "-  # the other one" in asked.text
        made = await visitor.do("remove", form_of(asked.text))
        page = await visitor.client.get(made.headers["location"])
        assert "notes:" not in source.paths.config_file.read_text()
        assert [*RemovedServers(source.paths.removed_file).names().values()] == ["notes"]
        [(change, undo)] = forms(page.text)
        assert (await visitor.do(change, undo)).status_code == 303
    assert source.paths.config_file.read_text() == CONFIG


async def test_what_a_server_says_of_a_tool_is_replaced_and_taken_back(source: NothingRuns) -> None:
    words = {"name": "mail:send", "effect": "destructive", "title": "", "description": "Sends\r\na mail."}
    async with opened_by(source) as visitor:
        asked = await visitor.do("override", words)
        await visitor.do("override", form_of(asked.text))
        tool = source.load().settings.servers["mail"].tools["send"]
        assert (tool.effect, tool.description) == ("destructive", "Sends\na mail.")
        asked = await visitor.do("override", words | {"effect": "", "description": ""})
        await visitor.do("override", form_of(asked.text))
        assert not source.load().settings.servers["mail"].tools
        wrong = await visitor.do("override", words | {"effect": "none"})
        server = await visitor.do("override", words | {"name": "mail"})
    assert "unknown value" in wrong.text
    assert "Sends" in wrong.text
    assert "mail is a server" in server.text


async def test_one_tool_is_disabled(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        asked = await visitor.do("disable", {"name": "mail:send"})
        await visitor.do("disable", form_of(asked.text))
        assert source.load().settings.servers["mail"].disabled_tools == {"send"}
        asked = await visitor.do("enable", {"name": "mail:send"})
        await visitor.do("enable", form_of(asked.text))
    assert source.paths.config_file.read_text() == CONFIG


async def test_a_restart_needs_a_gateway(source: NothingRuns) -> None:
    async with opened_by(source) as visitor:
        asked = await visitor.do("restart", {"name": "mail"})
        answer = await visitor.do("restart", form_of(asked.text))
    assert answer.status_code == 400
    assert "no gateway that runs has" in answer.text


async def test_a_broken_configuration_is_named_and_hides_nothing_else(source: NothingRuns) -> None:
    source.paths.config_file.write_text("servers: [")
    async with opened_by(source) as visitor:
        page = await visitor.client.get(f"{visitor.access.root}/waiting")
        answer = await visitor.do("disable", {"name": "mail"})
    assert page.status_code == 200
    assert "The definitions that wait are not known" in page.text
    assert answer.status_code == 400
    assert source.paths.config_file.name in answer.text
