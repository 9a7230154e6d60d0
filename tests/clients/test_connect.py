from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pml_gateway.clients import jsonc
from pml_gateway.clients.block import Block
from pml_gateway.clients.connect import (
    ClientEdit,
    ConnectedFiles,
    apply,
    connected,
    disconnected,
    served_entries,
    unconnected,
)
from pml_gateway.clients.discover import ClientFile, client_status, known_client
from pml_gateway.clients.model import FileFormat, Scope
from pml_gateway.clients.own import http_entry, own_kind, pml_command, stdio_entry
from pml_gateway.clients.show import masked_diff
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError
from tests.support.examples import examples
from tests.support.full_disk import contents, room_for

from .machine import ALL_PLACES, Machine
from .test_block import documents

SECRET = "hunter2-hunter2"
SETTINGS = Settings.model_validate(
    {"servers": {"files": {"command": "files", "args": ["-v"]}, "gone": {"command": "x"}}}
)


def connect(
    machine: Machine, file: ClientFile, *, http: bool = False, keep: bool = False, write: bool = True
) -> ClientEdit:
    own = (
        http_entry(file.client, SETTINGS, client_key=None, write_key=False, pin=True)
        if http
        else stdio_entry(file.client, machine.environ, pin=True)
    )
    connections = ConnectedFiles(machine.paths)
    base = unconnected(file, SETTINGS.http, machine.surroundings, connections)
    served = {} if keep else served_entries(base, SETTINGS, machine.surroundings)
    edit = connected(file, base, own, SETTINGS.http, connections, served=served, waiting={})
    if write and edit.has_changed:
        apply(edit, connections)
    return edit


@pytest.mark.parametrize("is_connected", [False, True])
def test_options_that_somebody_gave_the_gateway_stay(machine: Machine, is_connected: bool) -> None:
    words = ["--alone", "--mode", "hybrid", "--config", "/mine.yaml"]
    path = machine.write("home/.claude.json", {"mcpServers": {"tools": {"command": "/old/pml", "args": ["serve"]}}})
    if is_connected:
        connect(machine, machine.file("claude-code"))
    before = path.read_text().replace('"serve"', ", ".join(json.dumps(word) for word in ("serve", *words)))
    path.write_text(before)
    connect(machine, machine.file("claude-code"))
    [entry] = json.loads(path.read_text())["mcpServers"].values()
    assert [entry["command"], *entry["args"]] == [*pml_command(), "serve", *words]
    assert connect(machine, machine.file("claude-code")).how == "already"
    connect(machine, machine.file("claude-code"), http=True)
    assert "args" not in json.loads(path.read_text())["mcpServers"]["tools"]


def disconnect(machine: Machine, client: str, scope: Scope = Scope.USER) -> ClientEdit:
    connections = ConnectedFiles(machine.paths)
    edit = disconnected(machine.file(client, scope), SETTINGS.http, machine.surroundings, connections)
    apply(edit, connections)
    return edit


JSON_FILE = """\
{
    // settings of mine
    "theme": "dark",   "fontSize": 12.50,
    "BLOCK": {
        "files": {"command": "files", "args": ["-v"]}, // the good one
        /* not served */
        "mine": {
            "command": "mine",
            "env": {"MY_TOKEN": "hunter2-hunter2"},
        },
    },
    "last": [1, 2,],
}
"""

TOML_FILE = """\
# settings of mine
model = "o3"   # for now

[BLOCK.files]
command = "files"
args = ["-v"]

# not served
[BLOCK.mine]
command = 'mine'
env = { MY_TOKEN = "hunter2-hunter2" }

[profiles.x]
effort = "high"
"""


def fixture(machine: Machine, client: str, scope: Scope) -> ClientFile:
    """The client's file, full of what must survive."""
    file = machine.file(client, scope)
    if file.path.suffix == ".toml":
        text = TOML_FILE.replace("BLOCK", file.block.path[0])
    else:
        *outer, last = file.block.path
        text = JSON_FILE.replace("BLOCK", last)
        for step in reversed(outer):
            text = f"{{{json.dumps(step)}: {text.strip()}, }}"
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.path.write_text(text)
    file.path.chmod(0o640)
    return machine.file(client, scope)


@pytest.mark.parametrize(("client", "scope"), ALL_PLACES)
def test_every_client_is_connected_and_back_to_the_byte(machine: Machine, client: str, scope: Scope) -> None:
    file = fixture(machine, client, scope)
    before = file.path.read_bytes()

    edit = connect(machine, file)

    now = machine.file(client, scope)
    assert edit.removed == ("files",)
    assert edit.kept == ("mine",)
    assert set(now.entries) == {"mine", "pml"}
    assert [own_kind(raw, SETTINGS.http) for raw in now.entries.values()] == [None, "stdio"]
    assert now.entries["pml"].get("alwaysLoad") == (True if client == "claude-code" else None)
    assert "settings of mine" in now.text
    assert "not served" in now.text
    assert stat.S_IMODE(now.path.stat().st_mode) == 0o640
    assert client_status(now, SETTINGS.http).state == "both"
    assert SECRET not in edit.diff
    assert connect(machine, now).how == "already"

    undone = disconnect(machine, client, scope)

    assert undone.how == "restored"
    assert SECRET not in undone.diff
    assert file.path.read_bytes() == before
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert disconnect(machine, client, scope).how == "nothing"


@pytest.mark.parametrize(("client", "scope"), ALL_PLACES)
def test_what_was_changed_since_survives_and_our_edit_goes(machine: Machine, client: str, scope: Scope) -> None:
    file = fixture(machine, client, scope)
    connect(machine, file)
    changed = file.path.read_text().replace('"dark"', '"light"').replace('"o3"   #', '"o4"   #')
    file.path.write_text(changed)

    assert disconnect(machine, client, scope).how == "undone"

    assert file.path.read_text() == file.text.replace('"dark"', '"light"').replace('"o3"   #', '"o4"   #')


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
def test_what_codex_adds_at_the_end_of_its_file_leaves_the_way_back_to_the_byte(machine: Machine, eol: str) -> None:
    file = fixture(machine, "codex", Scope.USER)
    file.path.write_bytes(before := file.text.replace("\n", eol).encode())
    connect(machine, machine.file("codex"))
    added = f"{eol}# mine{eol}[projects.'/x']{eol}trust_level = 'trusted'{eol}".encode()
    file.path.write_bytes(file.path.read_bytes() + added)

    assert disconnect(machine, "codex").how == "undone"

    assert file.path.read_bytes() == before + added


def test_a_server_of_codex_comes_back_as_it_was_written_where_tables_moved(machine: Machine) -> None:
    file = fixture(machine, "codex", Scope.USER)
    file.path.write_text(file.text.replace('command = "files"', 'command = "files" # this one'))
    connect(machine, machine.file("codex"))
    top, first, second, own = re.split(r"(?m)^(?=\[)", file.path.read_text())
    file.path.write_text("# moved\n" + top + own + second + first)

    disconnect(machine, "codex")

    assert file.path.read_text().replace("\n\n", "\n") == (
        '# moved\n# settings of mine\nmodel = "o3"   # for now\n'
        '[mcp_servers.files]\ncommand = "files" # this one\nargs = ["-v"]\n'
        "# not served\n"
        '[profiles.x]\neffort = "high"\n'
        "[mcp_servers.mine]\ncommand = 'mine'\nenv = { MY_TOKEN = \"hunter2-hunter2\" }\n"
    )


@given(documents())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_connecting_and_disconnecting_leaves_no_trace_in_any_json(
    tmp_path_factory: pytest.TempPathFactory, document: tuple[str, dict[str, Any]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    text, _ = document
    path = machine.write("home/.cursor/mcp.json", text)

    connect(machine, machine.file("cursor"))
    between = path.read_bytes()
    disconnect(machine, "cursor")

    assert between != text.encode()
    assert path.read_bytes() == text.encode()

    # The same, with the record lost: what it says is what it said.
    connect(machine, machine.file("cursor"), keep=True)
    machine.paths.connections_file.unlink()
    disconnect(machine, "cursor")
    values = jsonc.parse(path.read_bytes().decode())
    assert {**values, "mcpServers": values["mcpServers"] or None} == {
        **document[1],
        "mcpServers": document[1].get("mcpServers") or None,
    }


def test_a_file_that_was_not_there_goes_again(machine: Machine) -> None:
    file = machine.file("vscode")

    connect(machine, file)

    assert json.loads(file.path.read_text()).keys() == {"servers"}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    disconnect(machine, "vscode")
    assert not file.path.exists()


def test_the_way_to_connect_can_change_and_the_way_back_stays(machine: Machine) -> None:
    file = fixture(machine, "claude-code", Scope.USER)
    connect(machine, file)

    edit = connect(machine, machine.file("claude-code"), http=True)

    assert edit.how == "connected"
    entry = machine.file("claude-code").entries["pml"]
    assert entry == {"type": "http", "url": "http://127.0.0.1:8765/mcp", "alwaysLoad": True}
    disconnect(machine, "claude-code")
    assert file.path.read_text() == file.text


def test_connecting_again_after_a_foreign_change_still_leads_back(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, file)
    file.path.write_text(file.path.read_text().replace('"theme": "dark"', '"theme": "light"'))

    connect(machine, machine.file("cursor"), http=True)
    disconnect(machine, "cursor")

    values = jsonc.parse(file.path.read_text())
    assert values == {**jsonc.parse(file.text), "theme": "light"}


def test_a_server_that_came_anew_is_not_overwritten(machine: Machine) -> None:
    file = fixture(machine, "cursor", Scope.USER)
    connect(machine, file)
    file.path.write_text(file.path.read_text().replace('"mine": {', '"files": {"command": "other"}, "mine": {'))

    edit = disconnect(machine, "cursor")

    assert edit.conflicts == ("files",)
    assert machine.file("cursor").entries["files"] == {"command": "other"}
    assert "pml" not in machine.file("cursor").entries


def test_links_are_followed_and_kept(machine: Machine) -> None:
    target = machine.write("dotfiles/cursor.json", '{"mcpServers": {}}')
    link = machine.home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(target)

    connect(machine, machine.file("cursor"))

    assert link.is_symlink()
    assert "pml" in json.loads(target.read_text())["mcpServers"]


def test_broken_files_and_changes_in_between_are_refused(machine: Machine) -> None:
    path = machine.write("home/.cursor/mcp.json", '{\n  "mcpServers": {]\n}')
    with pytest.raises(ConfigurationError, match="line 2"):
        connect(machine, machine.file("cursor"))

    path.write_text("{}")
    connections = ConnectedFiles(machine.paths)
    edit = connect(machine, machine.file("cursor"), write=False)
    path.write_text('{"a": 1}')
    with pytest.raises(ConfigurationError, match="changed by another program"):
        apply(edit, connections)
    assert path.read_text() == '{"a": 1}'


def test_backups_are_for_the_owner_alone(machine: Machine) -> None:
    connect(machine, fixture(machine, "claude-code", Scope.PROJECT))

    (backup,) = machine.paths.backups_dir.glob("claude-code-*")
    assert SECRET in backup.read_text()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.paths.backups_dir.stat().st_mode) == 0o700
    assert [path.name for path in machine.project.iterdir() if path.name not in (".git", ".mcp.json")] == []


@pytest.mark.parametrize(
    ("client", "header"),
    [
        ("claude-code", {"headers": {"Authorization": "Bearer ${CI_KEY}"}}),
        ("cursor", {"headers": {"Authorization": "Bearer ${env:CI_KEY}"}}),
        ("gemini-cli", {"headers": {"Authorization": "Bearer ${CI_KEY}"}}),
        ("codex", {"bearer_token_env_var": "CI_KEY"}),
    ],
)
def test_a_key_is_given_in_the_client_s_own_words(client: str, header: dict[str, Any]) -> None:
    with_key = Settings.model_validate({"clients": {"ci": {"key": "${env:CI_KEY}"}}, "http": {"host": "0.0.0.0"}})

    entry = http_entry(known_client(client), with_key, client_key=None, write_key=False, pin=False)

    assert entry.values.items() >= header.items()
    assert "http://127.0.0.1:8765/mcp" in entry.values.values()
    assert own_kind(entry.values, with_key.http) == "http"


def test_a_key_that_a_client_cannot_read_is_written_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_KEY", SECRET)
    with_key = Settings.model_validate({"clients": {"ci": {"key": "${env:CI_KEY}"}, "b": {"key": "${env:CI_KEY}"}}})
    zed = known_client("zed")

    with pytest.raises(ConfigurationError, match="several clients"):
        http_entry(zed, with_key, client_key=None, write_key=False, pin=True)
    with pytest.raises(ConfigurationError, match="cannot read"):
        http_entry(zed, with_key, client_key="ci", write_key=False, pin=True)
    with pytest.raises(ConfigurationError, match="takes no URL"):
        http_entry(known_client("claude-desktop"), with_key, client_key="ci", write_key=False, pin=True)
    entry = http_entry(zed, with_key, client_key="ci", write_key=True, pin=True)
    assert entry.values["headers"] == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(entry)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"command": "pml", "args": ["serve"]}, "stdio"),
        ({"command": "C:\\Tools\\pml.exe", "args": ["serve"]}, "stdio"),
        ({"command": "/v/bin/python", "args": ["-m", "pml_gateway", "serve"]}, "stdio"),
        ({"command": "uvx", "args": ["--from", "pml-gateway", "pml", "serve"]}, "stdio"),
        ({"command": {"path": "pml", "args": ["serve"]}}, "stdio"),
        ({"url": "http://localhost:8765/mcp/hybrid"}, "http"),
        ({"url": "http://localhost:9999/mcp"}, None),
        ({"command": "pml", "args": ["tools"]}, None),
        ({"command": "npx", "args": ["serve"]}, None),
        ("pml serve", None),
    ],
)
def test_our_own_entry_is_known_again(raw: object, kind: str | None) -> None:
    assert own_kind(raw, HttpSettings()) == kind


def test_the_command_is_one_that_starts_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "pml").write_text("")

    assert pml_command(tmp_path / "python") == [str(tmp_path / "pml")]
    assert pml_command(tmp_path / "other" / "python") == [str(tmp_path / "other" / "python"), "-P", "-m", "pml_gateway"]
    assert Path(pml_command()[0]).is_absolute()


def test_the_gateway_s_own_home_goes_with_the_entry(machine: Machine) -> None:
    entry = stdio_entry(known_client("codex"), {"PML_HOME": "/srv/pml"}, pin=True).values

    assert entry["env"] == {"PML_HOME": "/srv/pml"}
    path = machine.write("home/.codex/config.toml", "")
    edit = connect(machine, machine.file("codex"))
    assert edit.after is not None
    assert tomllib.loads(path.read_text())["mcp_servers"]["pml"]["args"][-1] == "serve"


KILLED = """
import sys
from pathlib import Path
from pml_gateway.files import write_atomically
path, texts = Path(sys.argv[1]), [c * 3_000_000 for c in "ab"]
print("ready", flush=True)
while True:
    for text in texts:
        write_atomically(path, text)
"""


def test_a_kill_during_a_write_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("a" * 3_000_000)
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.kill()
        text = path.read_text()
        assert len(text) == 3_000_000
        assert len(set(text)) == 1


@pytest.mark.parametrize("escaped", ["hunter2\\u0073ecret", "postgres:\\/\\/u:hunter2@h", "\\u0068unter2"])
def test_a_preview_masks_credentials_however_they_are_escaped(escaped: str) -> None:
    before = f'{{"mcpServers": {{\n  "db": {{"command": "x", "env": {{"DB_PASS": "{escaped}"}}}}\n}}}}'
    block = Block(FileFormat.JSON, ("mcpServers",))
    after = block.changed(before, (), {"pml": {"command": "pml"}})
    shown = masked_diff("mcp.json", before, after, block)
    assert "unter2" not in shown
    assert '"DB_PASS": ' in shown


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_a_preview_masks_credentials_of_several_lines(quotes: str) -> None:
    key = f"{quotes}\n-----BEGIN KEY-----\nhunter2one\nhunter2two\n{quotes}"
    before = f'[mcp_servers.db]\ncommand = "x"\n[mcp_servers.db.env]\nKEY = {key}\nMODE = "a"\n'
    block = Block(FileFormat.TOML, ("mcp_servers",))
    after = block.changed(before, {"db"}, {"pml": {"command": "pml"}})
    shown = masked_diff("config.toml", before, after, block)
    assert "hunter2" not in shown
    assert '-command = "x"' in shown


RECORD = ".pml/connections.json"


@pytest.mark.parametrize("known", [False, True])
def test_on_a_full_disk_a_file_is_connected_or_nothing_has_changed(machine: Machine, known: bool) -> None:
    path = machine.write("home/.claude.json", {"mcpServers": {"files": {"command": "files"}}, "x": "y" * 4000})
    if known:
        connect(machine, machine.file("claude-code"))
        changed = json.loads(path.read_text())
        changed["mcpServers"]["more"] = {"command": "x"}
        path.write_text(json.dumps(changed))
    edit = connect(machine, machine.file("claude-code"), write=False)
    before, noted = contents(machine.paths.home.parent), ConnectedFiles(machine.paths).get(edit.file)
    size = 0
    while True:
        with room_for(size):
            try:
                apply(edit, ConnectedFiles(machine.paths))
                break
            except ConfigurationError as error:
                assert "cannot be written: File too large" in str(error)
        after = contents(machine.paths.home.parent)
        assert {**after, RECORD: b""} == {**before, RECORD: b""}
        assert ConnectedFiles(machine.paths).get(machine.file("claude-code")) == noted
        size += 100
    assert size > 4000
    disconnect(machine, "claude-code")
    assert path.read_text() == before[".claude.json"].decode() or known


@pytest.mark.parametrize("client", ["codex", "claude-code", "cursor", "zed"])
def test_where_our_own_files_lie_is_shown_and_what_others_hold_is_not(machine: Machine, client: str) -> None:
    folder = str(machine.root / "x1234567890abcdef0" / "home")
    machine.environ["PML_HOME"] = folder
    file = fixture(machine, client, Scope.USER)
    edit = connect(machine, file)
    assert f'"{folder}"' in edit.diff
    assert pml_command()[0] in edit.diff
    assert SECRET not in edit.diff
    back = disconnected(machine.file(client), SETTINGS.http, machine.surroundings, ConnectedFiles(machine.paths))
    assert f'"{folder}"' in back.diff
    assert SECRET not in back.diff
