"""Sets of clients over stdio: by their entry, their variables, their folder and their name, in one shared process."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import TestMachine, open_machine
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio

SETS = {
    "code": {"include": ["git"]},
    "mail": {"include": ["mail"]},
    "reading": {"effects": ["read"]},
}
READ = {"readOnlyHint": True}


def opened(
    home: Path, *, roles: Any = None, rules: Any = (), **gateway: Any
) -> AbstractAsyncContextManager[TestMachine]:
    upstreams = {
        "git": ScriptedServer([tool("log", annotations=READ), tool("commit")]),
        "mail": ScriptedServer([tool("read", annotations=READ), tool("send")]),
    }
    given: dict[str, Any] = {"sets": SETS, "roles": roles or {}, "rules": list(rules)}
    return open_machine(home, upstreams, **given, gateway={"tools_exposure": "full_proxy", **gateway})


ALL = ["git__commit", "git__log", "mail__read", "mail__send"]


async def test_clients_with_different_sets_share_one_gateway(tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as machine,
        machine.attached("one") as whole,
        machine.attached("two", set="code") as code,
        machine.attached("three", environ={"PML_SET": "mail"}) as mail,
        machine.attached("four", set="code,reading", environ={"PML_SET": "mail"}) as both,
    ):
        assert await whole.tools() == ALL
        assert await code.tools() == ["git__commit", "git__log"]
        assert await mail.tools() == ["mail__read", "mail__send"]
        assert await both.tools() == ["git__commit", "git__log", "mail__read"]
        assert "no tool named 'mail__read'" in json.dumps(
            await code.request("tools/call", {"name": "mail__read", "arguments": {}})
        )
        assert len(machine.profiles.all) == 1


@pytest.mark.parametrize("name", ["cod", "", " , "])
async def test_a_set_that_there_is_not_is_an_error_at_the_start(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as machine, machine.attached("one", introduced=False, set=name) as client:
        refused = (await client.notice("refused"))["refused"]
        assert f"no set or role {name!r}" in refused["message"] and refused["exit"] == 2


@pytest.mark.parametrize("variable", ["", " ", "cod", "Code", "code\u200b", "*"])
async def test_a_variable_that_names_no_set_gives_nothing(tmp_path: Path, variable: str) -> None:
    async with opened(tmp_path) as machine:
        attaching = machine.attached("one", introduced=False, environ={"PML_SET": variable})
        async with attaching as client:
            assert (await client.notice("refused"))["refused"]["message"].startswith("--set or PML_SET: no set ")


async def test_an_edit_of_a_set_holds_for_clients_that_are_attached(tmp_path: Path) -> None:
    async with opened(tmp_path) as machine, machine.attached("one", set="code") as client:
        assert await client.tools() == ["git__commit", "git__log"]
        content = json.loads((tmp_path / "config.yaml").read_text())
        content["sets"]["code"]["exclude"] = ["*:commit"]
        (tmp_path / "config.yaml").write_text(json.dumps(content))
        await machine.command("reload")
        await client.next_told("notifications/tools/list_changed")
        assert await client.tools() == ["git__log"]


async def test_a_folder_narrows_what_its_clients_see_and_never_widens_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    written = {"gateway": {"sets": ["reading"]}, "sets": {"code": {"include": ["*"]}}, "clients": {}}
    (project / ".pml.yaml").write_text(json.dumps(written))
    async with (
        opened(tmp_path) as machine,
        machine.attached("one", folder=project) as whole,
        machine.attached("two", folder=project, set="code") as code,
        machine.attached("three", set="code") as elsewhere,
    ):
        assert await whole.tools() == ["git__log", "mail__read"]
        assert await code.tools() == ["git__log"]
        assert await elsewhere.tools() == ["git__commit", "git__log"]


@pytest.mark.parametrize("names", [["mail"], ["code", "mail"], [], ["none"], "code"])
async def test_a_folder_cannot_name_other_sets_than_those_that_all_clients_have(tmp_path: Path, names: Any) -> None:
    (tmp_path / ".pml.yaml").write_text(json.dumps({"gateway": {"sets": names}}))
    async with opened(tmp_path, sets=["code"]) as machine, machine.attached("one") as client:
        assert await client.tools() == ["git__commit", "git__log"]


async def test_a_client_is_narrowed_by_the_name_that_it_gives_itself(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, sets_by_client_name={"Curs*": ["code"]}) as machine,
        machine.attached("cursor") as narrowed,
        machine.attached("zed") as other,
        machine.attached("cursor-2", set="reading") as both,
    ):
        assert await narrowed.tools() == ["git__commit", "git__log"]
        assert await other.tools() == ALL
        assert await both.tools() == ["git__log"]


async def test_a_role_is_named_as_a_set_is_and_gives_all_that_it_has(tmp_path: Path) -> None:
    roles = {"reader": {"sets": ["code", "reading"], "limits": {"calls_per_day": 1}}}
    rules = [{"match": {"role": "reader", "tool": "git:commit"}, "do": "deny"}]
    async with (
        opened(tmp_path, roles=roles, rules=rules) as machine,
        machine.attached("one", set="reader") as reader,
        machine.attached("two", environ={"PML_SET": "mail,reader"}) as both,
        machine.attached("three", set="code") as other,
    ):
        assert await reader.tools() == ["git__commit", "git__log", "mail__read"]
        assert await both.tools() == ALL
        assert "a rule of the gateway's owner denies" in await reader.call("git__commit")
        assert "a rule of the gateway's owner denies" in await both.call("git__commit")
        assert "denies" not in await other.call("git__commit")
        assert "limit of 1 call a day" not in await reader.call("git__log")
        assert "limit of 1 call a day" in await reader.call("git__log")
