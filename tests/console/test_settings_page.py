"""The page about the configuration: values with origins, presets, single settings, the migration, backups, findings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.console.access import ConsoleAccess
from pml_gateway.console.app import Console
from tests.console.pages import NothingRuns, Visitor, console, hidden_fields, visitor
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio

SECRET = "hunter2-hunter2"

CONFIG = f"""\
gateway:
  tools_exposure: hybrid  # for now
servers:
  mail: {{url: "https://me:{SECRET}@mail.test/mcp", headers: {{Authorization: "Bearer {SECRET}"}}}}
"""


@pytest.fixture
def source(tmp_path: Path) -> NothingRuns:
    found = NothingRuns(tmp_path)
    found.paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    found.paths.config_file.write_text(CONFIG)
    return found


@pytest.fixture
async def opened(source: NothingRuns) -> AsyncIterator[Visitor]:
    access = ConsoleAccess()
    async with visitor(Console(source, access).app()) as client:
        await client.get(access.new_link())
        yield Visitor(client, access)


async def test_values_are_shown_with_their_origins_and_without_secrets(opened: Visitor, source: NothingRuns) -> None:
    page = await opened.page("settings")
    assert "gateway.tools_exposure" in page.text
    assert f"{source.paths.config_file.name}:2" in page.text
    assert "gateway.hybrid.semantic_threshold" not in page.text
    assert SECRET not in page.text
    everything = [await opened.page(f"settings?all=yes&page={number}") for number in (1, 2, 3)]
    assert any("gateway.hybrid.semantic_threshold" in each.text for each in everything)
    for each in everything:
        assert len(each.content) < 200_000
        assert SECRET not in each.text


async def test_one_setting_is_changed_and_put_back(opened: Visitor, source: NothingRuns) -> None:
    page = (await opened.page("settings?key=gateway.hybrid.semantic_threshold")).text
    assert 'name="value" value="0.6"' in page
    asked = await opened.do("setting", {"key": "gateway.hybrid.semantic_threshold", "value": "0.5"})
    assert "semantic_threshold: 0.5" in asked.text
    assert source.paths.config_file.read_text() == CONFIG
    made = await opened.do("setting", hidden_fields(asked.text))
    assert "semantic_threshold: 0.5" in source.paths.config_file.read_text()
    after = (await opened.client.get(made.headers["location"])).text
    assert "gateway.hybrid.semantic_threshold: changed." in after
    assert "Put back" in after
    await opened.do("undo", hidden_fields(after, "undo"))
    assert source.paths.config_file.read_text() == CONFIG


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("gateway.hybrid.semantic_threshold", "7", "less than or equal to 1"),
        ("gateway.nope", "1", "no setting"),
        ("gateway.tools_exposure", "hybird", "did you mean hybrid"),
    ],
)
async def test_a_setting_that_would_not_load_is_refused(
    opened: Visitor, source: NothingRuns, key: str, value: str, said: str
) -> None:
    answer = await opened.do("setting", {"key": key, "value": value})
    assert answer.status_code == 400
    assert said in answer.text
    assert source.paths.config_file.read_text() == CONFIG


async def test_a_masked_value_is_not_offered_to_be_written(opened: Visitor) -> None:
    page = (await opened.page("settings?key=servers.mail.url")).text
    assert 'name="value" value=""' in page
    assert SECRET not in page
    unknown = await opened.page(f"settings?key={quote('<b>')}")
    assert (unknown.status_code, "<b>" in unknown.text) == (502, False)


@pytest.mark.slow
async def test_a_broken_file_is_said_beside_the_backups_that_replace_it(opened: Visitor, source: NothingRuns) -> None:
    values = {"key": "gateway.intent", "value": "mail"}
    await opened.do("setting", hidden_fields((await opened.do("setting", values)).text))
    source.paths.config_file.write_text("gateway: {tool_exposure: hybrid}\n")
    page = (await opened.page("settings")).text
    assert "did you mean tools_exposure" in page
    await opened.do("undo", hidden_fields((await opened.do("undo", hidden_fields(page, "undo"))).text))
    assert source.paths.config_file.read_text() == CONFIG


async def test_a_preset_is_used_after_its_difference_was_shown(opened: Visitor, source: NothingRuns) -> None:
    assert (await opened.page("settings")).text.count(">used<") == 0
    asked = await opened.do("preset", {"name": "full_proxy"})
    assert "+  tools_exposure: full_proxy" in asked.text
    await opened.do("preset", hidden_fields(asked.text))
    assert "full_proxy" in source.paths.config_file.read_text()
    assert (await opened.page("settings")).text.count(">used<") == 1


@pytest.mark.slow
async def test_the_stage_is_shown_and_a_step_needs_a_gateway(opened: Visitor, source: NothingRuns) -> None:
    await opened.do("preset", hidden_fields((await opened.do("preset", {"name": "full_proxy"})).text))
    page = (await opened.page("settings")).text
    assert "The stage is full_proxy" in page
    assert "Move to hybrid_permissive" in page
    assert "no gateway runs" in (await opened.do("stage_next")).text
    assert "no step to go back from" in (await opened.do("stage_back")).text


async def test_what_the_doctor_finds_is_shown_and_fixed(opened: Visitor, source: NothingRuns, tmp_path: Path) -> None:
    lost = tmp_path / "dead.sock"
    lost.touch()
    source.found.extend(
        [
            Finding(Area.FILES, Severity.OK, "", "fine"),
            Finding(Area.GATEWAYS, Severity.WARNING, "<b>", "dead", "pml doctor --fix", repair=lost.unlink),
        ]
    )
    page = await opened.page("doctor")
    assert "1 thing to look at" in page.text
    assert page.text.index("dead") < page.text.index("fine")
    assert "<b>" not in page.text
    assert page.text.count('aria-label="Fix ') == 1
    asked = await opened.do("repair", hidden_fields(page.text, "repair"))
    assert lost.exists()
    made = await opened.do("repair", hidden_fields(asked.text))
    assert made.status_code == 303
    assert not lost.exists()
    gone = await opened.do("repair", {"finding": "0"})
    assert (gone.status_code, "no longer found" in gone.text) == (400, True)


@pytest.mark.slow
async def test_a_step_of_the_migration_is_taken_and_undone(tmp_path: Path) -> None:
    text = "gateway: {tools_exposure: full_proxy}\n"
    file = paths_in(tmp_path).config_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    server = ScriptedServer([tool("read_mail", "Read an email.")])
    async with console(tmp_path, {"mail": server}, gateway={"tools_exposure": "full_proxy"}) as browser:
        page = (await browser.page("settings")).text
        asked = await browser.do("stage_next", hidden_fields(page, "stage_next"))
        assert "Move to hybrid_permissive?" in asked.text
        assert "No calls are recorded" in asked.text
        assert file.read_text() == text
        made = await browser.do("stage_next", hidden_fields(asked.text))
        assert "tools_exposure: hybrid" in file.read_text()
        after = (await browser.client.get(made.headers["location"])).text
        assert "Moved to hybrid_permissive." in after
        assert "Undo the last step" in after
        undone = await browser.do("stage_back", hidden_fields(after, "stage_back"))
        assert (undone.status_code, file.read_text()) == (303, text)
