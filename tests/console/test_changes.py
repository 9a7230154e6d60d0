"""Changes that pages make: asked for, shown, confirmed, undone, and refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.console.forms import MAX_BODY
from tests.console.pages import BASE, NothingRuns, Visitor, form_of, opened_by

pytestmark = pytest.mark.anyio

MAIL = {"name": "mail"}

CONFIG = "servers:\n  mail: {command: mail-server}  # ours\n"


@pytest.fixture
def source(tmp_path: Path) -> NothingRuns:
    return NothingRuns.with_configuration(tmp_path, CONFIG)


@pytest.fixture
async def opened(source: NothingRuns) -> AsyncIterator[Visitor]:
    async with opened_by(source) as visitor:
        yield visitor


async def test_a_change_is_asked_about_made_and_undone(opened: Visitor, source: NothingRuns) -> None:
    asked = await opened.do("disable", {"name": "mail", "back": "server?name=mail"})
    assert asked.status_code == 200
    assert "Disable mail?" in asked.text
    assert "+  mail: {command: mail-server, enabled: false}  # ours" in asked.text
    assert source.paths.config_file.read_text() == CONFIG
    made = await opened.do("disable", form_of(asked.text))
    assert made.status_code == 303
    assert "enabled: false" in source.paths.config_file.read_text()
    page = await opened.client.get(made.headers["location"].replace("/server?name=mail&", "/servers?"))
    assert "mail is disabled." in page.text
    undone = await opened.do("undo", form_of(page.text))
    assert undone.status_code == 303
    assert source.paths.config_file.read_text() == CONFIG
    assert "That is undone." in (await opened.client.get(undone.headers["location"])).text


async def test_a_file_that_changed_since_it_was_looked_at_is_shown_anew(opened: Visitor, source: NothingRuns) -> None:
    asked = await opened.do("disable", MAIL)
    other = CONFIG + "  more: {command: more}\n"
    source.paths.config_file.write_text(other)
    again = await opened.do("disable", form_of(asked.text))
    assert again.status_code == 200
    assert "changed since you looked" in again.text
    assert source.paths.config_file.read_text() == other
    assert (await opened.do("disable", form_of(again.text))).status_code == 303


async def test_an_undo_that_would_lose_a_later_edit_shows_it_first(opened: Visitor, source: NothingRuns) -> None:
    made = await opened.do("disable", form_of((await opened.do("disable", MAIL)).text))
    page = await opened.client.get(made.headers["location"])
    changed = source.paths.config_file.read_text() + "# note\n"
    source.paths.config_file.write_text(changed)
    asked = await opened.do("undo", form_of(page.text))
    assert asked.status_code == 200
    assert "-# note" in asked.text
    assert source.paths.config_file.read_text() == changed


async def test_what_is_so_already_is_said(opened: Visitor, source: NothingRuns) -> None:
    made = await opened.do("enable", MAIL)
    assert made.status_code == 303
    assert "mail is enabled already." in (await opened.client.get(made.headers["location"])).text
    assert source.paths.config_file.read_text() == CONFIG


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "nope"}, "nope"),
        ({"name": ""}, "nothing is given"),
        ({"name": "x" * 501}, "501 characters"),
        ({"name": "a\nb"}, "cannot be shown"),
        ({"name": "mail", "more": "1"}, "unknown field &#39;more&#39;"),
        ({"id": "1", "scope": "all"}, "unknown"),
    ],
)
async def test_values_are_checked(opened: Visitor, source: NothingRuns, values: dict[str, str], said: str) -> None:
    answer = await opened.do("approve" if "id" in values else "disable", values)
    assert answer.status_code == 400
    assert said in answer.text
    assert source.paths.config_file.read_text() == CONFIG


@pytest.mark.parametrize("token", ["", "guess", "é"])
async def test_a_form_without_the_token_changes_nothing(opened: Visitor, source: NothingRuns, token: str) -> None:
    asked = await opened.do("disable", MAIL)
    answer = await opened.do("disable", {**form_of(asked.text), "token": token})
    assert answer.status_code == 403
    assert source.paths.config_file.read_text() == CONFIG


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "http://localhost:7000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Cookie": ""},
    ],
)
async def test_a_form_of_another_page_changes_nothing(
    opened: Visitor, source: NothingRuns, headers: dict[str, str]
) -> None:
    asked = await opened.do("disable", MAIL)
    answer = await opened.do("disable", form_of(asked.text), headers)
    assert answer.status_code == 403
    assert source.paths.config_file.read_text() == CONFIG


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"name": "mail"}', "application/json", 415),
        (b"name=mail", "text/plain", 415),
        (b"x", "multipart/form-data; boundary=x", 415),
        (b"name=" + b"x" * MAX_BODY, "application/x-www-form-urlencoded", 413),
        (b"name=%ff", "application/x-www-form-urlencoded", 400),
        (b"name=a&name=b", "application/x-www-form-urlencoded", 400),
        (b"name", "application/x-www-form-urlencoded", 400),
        (b"\xe9=1", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a%d=1" % number for number in range(100)), "application/x-www-form-urlencoded", 400),
    ],
)
async def test_what_is_no_form_is_refused(opened: Visitor, content: bytes, kind: str, status: int) -> None:
    headers = {"Origin": BASE, "Content-Type": kind}
    answer = await opened.client.post(f"{opened.access.root}/do/disable", content=content, headers=headers)
    assert answer.status_code == status
    assert "That did not work" in answer.text


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "nope", "servers\r\nX: y", "../x", "do/undo"]
)
async def test_a_change_returns_to_pages_of_the_console_alone(opened: Visitor, back: str) -> None:
    made = await opened.do("enable", {"name": "mail", "back": back})
    assert made.headers["location"].startswith(f"{opened.access.root}/servers?made=")


async def test_nothing_is_changed_by_a_look(opened: Visitor) -> None:
    asked: Any = await opened.client.get(f"{opened.access.root}/do/disable?name=mail&token={opened.access.form_token}")
    assert asked.status_code == 405
    assert (await opened.do("nope")).status_code == 404
