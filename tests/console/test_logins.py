"""Logins that a page starts: the address is shown, the browser comes back, and failures are told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import anyio
import pytest

from pml_gateway.console.access import ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.console.logins import RunningLogins
from tests.console.pages import NothingRuns, Visitor, visitor
from tests.support.authorization import Protected, keys_in_files, protected
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(autouse=True)
def without_a_keyring() -> Iterator[None]:
    with keys_in_files():
        yield


@asynccontextmanager
async def opened(folder: Path, stand: Protected) -> AsyncIterator[tuple[Visitor, RunningLogins, NothingRuns]]:
    """A console of this machine in front of a server that asks for a login."""
    text = f"servers:\n  remote: {{url: '{stand.url}'}}\n  local: {{command: x}}\n"
    source = NothingRuns.with_configuration(folder, text)
    access, logins = ConsoleAccess(), RunningLogins()
    async with visitor(Console(source, access, logins=logins).app()) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(logins.run)
        await client.get(access.new_link())
        yield Visitor(client, access), logins, source
        tasks.cancel_scope.cancel()


async def test_a_login_is_done_in_the_browser_and_kept(tmp_path: Path) -> None:
    async with protected() as stand, opened(tmp_path, stand) as (browser, _, source):
        made = await browser.do("log_in", {"name": "remote"})
        page = await browser.client.get(made.headers["location"])
        [address] = re.findall(r'<a href="([^"]+)" target="_blank" rel="noopener noreferrer">', page.text)
        await stand.browse(unescape(address))
        await until(lambda: any(source.paths.auth_dir.rglob("*remote*")))
    assert made.status_code == 303


async def test_a_second_attempt_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with protected() as stand, opened(tmp_path, stand) as (browser, logins, _):
        first = await browser.do("log_in", {"name": "remote"})
        second = await browser.do("log_in", {"name": "remote"})
        assert (first.status_code, second.status_code) == (303, 303)
        assert logins.problem("remote") == ""


async def test_a_server_that_takes_no_login_is_named(tmp_path: Path) -> None:
    async with protected() as stand, opened(tmp_path, stand) as (browser, *_):
        answer = await browser.do("log_in", {"name": "local"})
        unknown = await browser.do("log_in", {"name": "nope"})
    assert (answer.status_code, unknown.status_code) == (400, 400)
    assert "local is a stdio server, which takes no login" in answer.text
    assert "nope" in unknown.text


async def test_where_the_browser_may_be_elsewhere_the_command_is_named(tmp_path: Path) -> None:
    source, access = NothingRuns.with_configuration(tmp_path, "servers: {}\n"), ConsoleAccess()
    async with visitor(Console(source, access).app()) as client:
        await client.get(access.new_link())
        answer = await Visitor(client, access).do("log_in", {"name": "remote"})
    assert answer.status_code == 400
    assert "pml upstreams login remote" in answer.text
