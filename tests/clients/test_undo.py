"""Undoing `connect` in files that others edited meanwhile: our edit goes, and every other byte stays."""

from __future__ import annotations

import json
import stat
import tomllib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.clients import jsonc
from pml_gateway.clients.connect import ConnectedFiles
from pml_gateway.clients.model import Scope
from pml_gateway.errors import ConfigurationError
from tests.support.examples import examples

from .machine import Machine
from .test_block import documents
from .test_connect import connect, disconnect, fixture

SERVED = {
    "files": [
        '"files": {"command": "files", "args": ["-v"]}',
        '"files": {\n      "command": "files", // the good one\n      "args": ["-v"]\n    }',
        '"files":{ "args" : [ "-v" ] , /* first */ "command":"files" }',
    ],
    "gone": ['"gone": {"command": "x"}', '"gone": {\n      // by its maker\n      "command": "x",\n    }'],
}
OTHERS = {
    "mine": '"mine": {\n      "command": "mine", "env": {"A": "1"}\n    }',
    "yours": '"yours": {"command": "yours" /* not mine */, "env": {"A": "1"}}',
}
EDITS = [
    ('"dark"', '"light"'),
    ("// top", "// top\n// and mine"),
    ('"last": [1, 2]', '"last": [1, 2],\n  "added": {"deep": [true]}'),
    ('"theme"', '"first": 0,\n  "theme"'),
    ('"command": "mine"', '"command": "mine", "args": ["--more"]'),
    ('"yours": {', '"yours": { /* changed */ '),
    ("/* not mine */", "/* yours */"),
]


@st.composite
def client_files(draw: st.DrawFn) -> str:
    """A file of a client in the layouts of people: comments, entries on one line or several, either line ending."""
    entries = [draw(st.sampled_from(ways)) for ways in SERVED.values()]
    entries += draw(st.lists(st.sampled_from(list(OTHERS.values())), unique=True))
    lines = []
    for at, entry in enumerate(order := draw(st.permutations(entries))):
        if draw(st.booleans()):
            lines.append(f"    // about {at}")
        is_last = at + 1 == len(order)
        comma = "" if is_last and draw(st.booleans()) else ","
        lines.append(f"    {entry}{comma}{draw(st.sampled_from(['', ' // why', '  ']))}")
    block = "\n".join(['  "mcpServers": {', *lines, *draw(st.sampled_from([[], ["    // end"]])), "  }"])
    members = draw(st.permutations(['  "theme": "dark"', '  "last": [1, 2]', block]))
    text = "// top\n{\n" + ",\n".join(members) + "\n}" + draw(st.sampled_from(["", "\n", "\n\n"]))
    return draw(st.sampled_from(["", jsonc.BOM])) + (text.replace("\n", "\r\n") if draw(st.booleans()) else text)


def edited(text: str, edits: list[tuple[str, str]]) -> str:
    for old, new in edits:
        text = text.replace(old, new.replace("\n", "\r\n") if "\r\n" in text else new)
    return text


@given(client_files(), st.lists(st.sampled_from(EDITS), unique=True, min_size=1))
@settings(max_examples=examples(25))
def test_what_others_changed_elsewhere_is_all_that_differs(
    tmp_path_factory: pytest.TempPathFactory, text: str, edits: list[tuple[str, str]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    path = machine.write("home/.cursor/mcp.json", text)
    connect(machine, machine.file("cursor"))
    path.write_bytes(edited(path.read_bytes().decode(), edits).encode())

    edit = disconnect(machine, "cursor")

    assert path.read_bytes().decode() == edited(text, edits)
    assert edit.conflicts == ()


@given(client_files(), st.lists(st.sampled_from(EDITS), unique=True), st.lists(st.sampled_from(EDITS), unique=True))
@settings(max_examples=examples(12))
def test_connecting_again_after_an_edit_leads_back_as_well(
    tmp_path_factory: pytest.TempPathFactory, text: str, first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    path = machine.write("home/.cursor/mcp.json", text)
    second = [edit for edit in second if edit not in first]
    connect(machine, machine.file("cursor"))
    path.write_bytes(edited(path.read_bytes().decode(), first).encode())
    again = connect(machine, machine.file("cursor"), http=True)
    assert set(again.removed) == {"files", "gone"}
    path.write_bytes(edited(path.read_bytes().decode(), second).encode())

    disconnect(machine, "cursor")

    assert path.read_bytes().decode() == edited(edited(text, first), second)


@given(documents(), st.sampled_from(["", " ", "\n// mine", "\r\n/* mine */\n"]))
@settings(max_examples=examples(12))
def test_in_any_layout_the_way_back_leaves_what_was_added(
    tmp_path_factory: pytest.TempPathFactory, document: tuple[str, dict[str, Any]], added: str
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    path = machine.write("home/.cursor/mcp.json", document[0])
    connect(machine, machine.file("cursor"))
    path.write_bytes(path.read_bytes() + added.encode())

    disconnect(machine, "cursor")

    assert path.read_bytes().decode() == document[0] + added


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(10))
def test_a_file_that_its_client_writes_anew_looks_as_if_it_had_never_been_connected(
    tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    names = ["files", "gone", "mine", "yours"]
    random.shuffle(names)
    entries: dict[str, Any] = {name: {"command": name, "args": []} for name in names}
    entries |= {"files": {"command": "files", "args": ["-v"]}, "gone": {"command": "x"}}
    values = {"starts": 1, "mcpServers": entries, "history": [{"display": str(at)} for at in range(40)]}
    path = machine.write("home/.cursor/mcp.json", values)
    connect(machine, machine.file("cursor"))
    now = json.loads(path.read_text())
    path.write_text(json.dumps({**now, "starts": 2, "history": now["history"][5:], "new": {}}, indent=2))

    disconnect(machine, "cursor")

    expected = {**values, "starts": 2, "history": values["history"][5:], "new": {}}  # type: ignore[index]
    assert path.read_text() == json.dumps(expected, indent=2)


TOML = """\
# settings of mine
model = "o3"   # for now

[mcp_servers.files]  # the good one
command = "files"
args = [
  "-v",  # loud
]

# not served
[mcp_servers.mine]
command = 'mine'

[mcp_servers.mine.env]
A = "1"

# before the last
[mcp_servers.gone]
command = "x"

[profiles.x]
effort = "high"
"""
TOML_EDITS = [
    ("# settings of mine", "# settings of mine\napproval = 'never'"),
    ('"o3"', '"o4"'),
    ("# before the last", "# before the last\n# (of all)"),
    ("command = 'mine'", "command = 'mine'  # still\nargs = ['a']"),
    ('A = "1"', "A = '2'"),
    ('effort = "high"', 'effort = "low"\n\n[projects."/x"]\ntrust_level = "trusted"'),
]


@given(st.lists(st.sampled_from(TOML_EDITS), unique=True, min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(max_examples=examples(10))
def test_codex_keeps_its_comments_and_layout(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, str]], eol: str, ends: bool
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    text = (TOML if ends else TOML.rstrip()).replace("\n", eol)
    path = machine.write("home/.codex/config.toml", text)
    connect(machine, machine.file("codex"))
    path.write_bytes(edited(path.read_bytes().decode(), edits).encode())

    disconnect(machine, "codex")

    assert path.read_bytes().decode() == edited(text, edits)


@pytest.mark.parametrize("client", ["vscode", "codex", "zed"])
def test_our_entry_goes_with_whatever_was_changed_in_it(machine: Machine, client: str) -> None:
    file = fixture(machine, client, Scope.USER)
    connect(machine, machine.file(client))
    now = file.path.read_text()
    changed = now.replace(
        'args = ["serve"]', 'args = ["serve", "--mode", "hybrid"]  # mine\n\n[mcp_servers.pml.env]\nX = "1"'
    )
    changed = changed.replace('"serve"\n', '"serve",\n "--mode", // mine\n "hybrid"\n')
    assert changed != now
    file.path.write_text(changed.replace("dark", "light").replace('"o3"', '"o4"'))

    disconnect(machine, client)

    assert file.path.read_text() == file.text.replace("dark", "light").replace('"o3"', '"o4"')


@pytest.mark.parametrize("client", ["vscode", "codex", "zed"])
def test_a_server_that_was_added_beside_ours_stays_and_the_others_come_back_as_they_were(
    machine: Machine, client: str
) -> None:
    file = fixture(machine, client, Scope.USER)
    connect(machine, machine.file(client))
    now = machine.file(client)
    file.path.write_text(now.block.changed(now.text, (), {"new": {"command": "new"}}))

    disconnect(machine, client)

    after = machine.file(client)
    assert dict(after.entries) == {**file.entries, "new": {"command": "new"}}
    lines = Counter(line.rstrip(",") for line in file.text.splitlines())
    assert lines <= Counter(line.rstrip(",") for line in after.text.splitlines())


@pytest.mark.parametrize("client", ["cursor", "codex"])
def test_where_our_entry_was_taken_out_by_hand_the_servers_come_back(machine: Machine, client: str) -> None:
    file = fixture(machine, client, Scope.USER)
    connect(machine, machine.file(client))
    now = machine.file(client)
    file.path.write_text(now.block.changed(now.text, {"pml"}, {}))

    disconnect(machine, client)

    after = machine.file(client)
    assert after.entries == file.entries
    assert [line for line in after.text.splitlines() if line.strip()] == [
        line for line in file.text.splitlines() if line.strip()
    ]
    assert disconnect(machine, client).how == "nothing"


def test_a_file_that_was_put_back_by_hand_needs_nothing_and_gives_no_warning(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, machine.file("cursor"))
    file.path.write_text(file.text)

    edit = disconnect(machine, "cursor")

    assert (edit.how, edit.conflicts) == ("nothing", ())
    assert file.path.read_text() == file.text
    assert ConnectedFiles(machine.paths).get(machine.file("cursor")) is None


@pytest.mark.parametrize(
    ("again", "is_another"),
    [
        ('{"args":["-v"],"command":"files"}', False),
        ('{"command": "${env:WORD}", "args": ["-v"], "type": "stdio"}', False),
        ('{"command": "files", "args": ["-v", "-v"]}', True),
    ],
)
def test_a_server_that_is_there_again_stays_as_it_is(machine: Machine, again: str, is_another: bool) -> None:
    machine.environ["WORD"] = "files"
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, machine.file("cursor"))
    file.path.write_text(file.path.read_text().replace('"mine": {', f'"files": {again},\n        "mine": {{'))

    edit = disconnect(machine, "cursor")

    assert edit.conflicts == (("files",) if is_another else ())
    assert file.path.read_text().count('"files":') == 1
    assert f'"files": {again}' in file.path.read_text()
    assert set(machine.file("cursor").entries) == {"files", "mine"}


def claude(machine: Machine) -> Path:
    block = '{"files": {"command": "files", "args": ["-v"]}, "mine": {"command": "m"}}'
    return machine.write(
        "home/.claude.json",
        f'{{\n  "starts": 1,\n  "mcpServers": {block},\n  "projects": {{\n    {json.dumps(str(machine.project))}: '
        f'{{\n      "mcpServers": {block},\n      "history": []\n    }}\n  }}\n}}\n',
    )


@pytest.mark.parametrize("order", [(Scope.USER, Scope.LOCAL), (Scope.LOCAL, Scope.USER)])
@pytest.mark.parametrize("is_edited", [False, True])
def test_two_scopes_of_one_file_are_undone_in_any_order(
    machine: Machine, order: tuple[Scope, Scope], is_edited: bool
) -> None:
    path = claude(machine)
    before = path.read_text()
    for scope in (Scope.USER, Scope.LOCAL):
        connect(machine, machine.file("claude-code", scope))
    if is_edited:
        path.write_text(path.read_text().replace('"starts": 1', '"starts": 2'))

    for scope in order:
        disconnect(machine, "claude-code", scope)

    assert path.read_text() == before.replace('"starts": 1', '"starts": 2' if is_edited else '"starts": 1')


def test_the_same_edit_twice_is_undone_once(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    for http in (False, True, False):
        connect(machine, machine.file("cursor"), http=http)

    disconnect(machine, "cursor")

    assert file.path.read_text() == file.text


def test_a_file_that_only_ever_held_our_entry_goes_and_one_that_got_more_stays(machine: Machine) -> None:
    path = machine.file("cursor").path
    connect(machine, machine.file("cursor"))
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    disconnect(machine, "cursor")
    assert not path.exists()

    connect(machine, machine.file("cursor"))
    path.write_text(path.read_text().replace('{\n  "mcp', '{\n  "mine": 1, // yes\n  "mcp', 1))
    disconnect(machine, "cursor")
    assert path.read_text() == '{\n  "mine": 1 // yes\n}\n'


@pytest.mark.parametrize("state", ["deleted", "broken", "not text"])
def test_for_a_file_that_is_gone_or_broken_there_is_the_backup(machine: Machine, state: str) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, machine.file("cursor"))
    broken = b"\xff\xfe{" if state == "not text" else b'{"mcpServers": {'
    if state == "deleted":
        file.path.unlink()
    else:
        file.path.write_bytes(broken)

    edit = disconnect(machine, "cursor")

    assert edit.how == "replaced"
    assert file.path.read_text() == file.text
    aside = file.path.with_name("mcp.json.broken")
    assert (aside.read_bytes() if aside.exists() else None) == (None if state == "deleted" else broken)
    assert disconnect(machine, "cursor").how == "nothing"


def test_a_broken_file_that_was_never_connected_is_left_alone(machine: Machine) -> None:
    path = machine.write("home/.cursor/mcp.json", "{")

    with pytest.raises(ConfigurationError, match="is broken JSON"):
        disconnect(machine, "cursor")

    assert path.read_text() == "{"


def test_without_its_backup_the_entry_goes_and_what_is_lost_is_named(machine: Machine) -> None:
    file = fixture(machine, "codex", Scope.USER)
    connect(machine, machine.file("codex"))
    for backup in machine.paths.backups_dir.iterdir():
        backup.unlink()

    edit = disconnect(machine, "codex")

    assert edit.lost == ("files",)
    assert tomllib.loads(file.path.read_text())["mcp_servers"].keys() == {"mine"}


@pytest.mark.parametrize("client", ["cursor", "codex"])
@pytest.mark.parametrize(("before", "after"), [("\n", "\r\n"), ("\r\n", "\n")])
def test_other_line_ends_are_kept(machine: Machine, client: str, before: str, after: str) -> None:
    file = fixture(machine, client, Scope.USER)
    file.path.write_bytes(file.text.replace("\n", before).encode())
    connect(machine, machine.file(client))
    now = file.path.read_bytes().decode()
    file.path.write_bytes(now.replace(before, after).replace("dark", "light").encode())

    disconnect(machine, client)

    assert file.path.read_bytes().decode() == file.text.replace("\n", after).replace("dark", "light")


def test_an_entry_of_ours_that_became_somebody_else_s_stays(machine: Machine) -> None:
    file = fixture(machine, "zed", Scope.USER)
    connect(machine, machine.file("zed"))
    now = machine.file("zed")
    file.path.write_text(now.block.changed(now.text, (), {"pml": {"command": "other"}}))

    edit = disconnect(machine, "zed")

    assert edit.conflicts == ("pml",)
    assert dict(machine.file("zed").entries) == {**file.entries, "pml": {"command": "other"}}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_gateways_at_one_file_each_undo_their_own_edit_alone(machine: Machine, order: str) -> None:
    file = fixture(machine, "cursor", Scope.USER)

    def at(home: str) -> Machine:
        machine.environ["PML_HOME"] = str(machine.root / home)
        return machine

    for home in "ab":
        connect(at(home), machine.file("cursor"))
        connected_text = file.path.read_text()
    assert disconnect(at("stranger"), "cursor").how == "nothing"
    assert file.path.read_text() == connected_text

    first, last = list(order)
    disconnect(at(first), "cursor")
    entry = machine.file("cursor").entries["pml"]
    assert entry["env"]["PML_HOME"] == str(machine.root / last)
    disconnect(at(last), "cursor")

    assert machine.file("cursor").entries == file.entries
    assert order == "ab" or file.path.read_text() == file.text


def test_a_folder_in_place_of_the_file_gives_it_no_mode(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, machine.file("cursor"))
    file.path.unlink()
    file.path.mkdir(mode=0o755)

    assert disconnect(machine, "cursor").how == "replaced"

    assert file.path.read_text() == file.text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_link_that_leads_back_to_itself_is_broken_and_replaced_by_the_backup(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, machine.file("cursor"))
    file.path.unlink()
    file.path.symlink_to(file.path.name)
    with pytest.raises(ConfigurationError, match="is a link that leads back to itself"):
        connect(machine, machine.file("cursor"))

    assert disconnect(machine, "cursor").how == "replaced"

    assert file.path.read_text() == file.text
