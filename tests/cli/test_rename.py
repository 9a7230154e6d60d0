"""`pml rename`: what is kept under a server's id goes with it, also if the first try was interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from typer.testing import CliRunner

from pml_gateway.activity.database import activity_tables
from pml_gateway.activity.history import RecordFilter, most_used, read_history
from pml_gateway.catalog.build import Prefix
from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile
from pml_gateway.cli.app import app
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.servers import AuthDefinition
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin
from pml_gateway.paths import Paths
from pml_gateway.setup.server_state import copy_state
from pml_gateway.storage.tables import Connection
from pml_gateway.trust.identity import identity_of
from pml_gateway.trust.pins import Acceptance, Form, Pins, ServerPins
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.verdict import SubjectKind
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin
from tests.support.authorization import keys_in_files
from tests.support.command_line import home_of

URL = "https://notes.example/mcp"
NOTE = (SubjectKind.TOOL, "read")


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    servers = {"notes": {"url": URL}, "calc": {"command": "python3"}}
    with keys_in_files(), home_of(tmp_path, {"servers": servers}):
        yield Paths.from_environ()


def rename() -> None:
    result = CliRunner().invoke(app, ["rename", "notes", "diary", "--yes"])
    assert result.exit_code == 0, result.output


def manifest_of(paths: Paths, prefix: Prefix) -> ManifestFile:
    return ManifestFile(paths.manifest_dir, paths.identity(None), prefix)


def login_of(paths: Paths, server: str) -> Path:
    return LoginStore(paths.auth_dir).path(server, URL, AuthDefinition())


def fill(paths: Paths) -> None:
    """Keep something of every kind under `notes`, and of `calc`, which must not change."""
    settings, config = load_user_settings(paths), paths.identity(None)
    entries = {name: ManifestEntry(each.fingerprint(), (), 1.0) for name, each in settings.servers.items()}
    names = {("notes", "read"): "notes__read", ("notes", "open"): "open", ("calc", "add"): "calc__add"}
    for prefix in ("always", "on_collision"):
        manifest_of(paths, prefix).save(Manifest(entries, names))
    form = Form({"name": "read"}, "digest", Acceptance.OWNER, 1.0)
    pins = {
        (name, what): ServerPins(name, what).with_forms([(NOTE, form)])
        for name, each in settings.servers.items()
        if (what := identity_of(each).what)
    }
    PinsFile(paths.pins_dir, config).change(lambda _: Pins(pins))
    client = OAuthClientInformationFull(client_id="c", redirect_uris=None)
    token = OAuthToken(access_token="secret-token")
    login = StoredLogin(server_url=URL, tokens=token, client=client, obtained_at=time.time())
    LoginStore(paths.auth_dir).save(login_of(paths, "notes"), login)
    ExampleLibrary(paths.example_queries_dir).put(
        "digest", ["show my notes"], ExampleOrigin.OWNER, name="read", server="notes"
    )
    hits = json.dumps([["notes", "read"], ["calc", "notes"]])

    def record(database: Connection) -> None:
        for number, (of, upstream) in enumerate(((config, "notes"), (config, "calc"), ("another", "notes"))):
            database.execute(
                "INSERT INTO accesses VALUES (?, ?, ?, 'c', 'tools/call', ?, 'read', 'x', 'read', 'OK', 0, '', '', '',"
                " 'direct', 'hybrid', 's', NULL, NULL, NULL, 0.1, 0.1, 1, 0, 0, 'off', NULL, 1, '', '')",
                (number, time.time(), of, upstream),
            )
        database.execute(
            "INSERT INTO searches VALUES (1, ?, ?, 1, 'c', 'hybrid', 's', 'q', ?, '')", (time.time(), config, hits)
        )

    with closing(activity_tables(paths.activity_file)) as tables:
        tables.change(record)


def check(paths: Paths) -> None:
    """Everything of `notes` is `diary`'s, and nothing else changed."""
    settings, config = load_user_settings(paths), paths.identity(None)
    assert list(settings.servers) == ["diary", "calc"]
    for prefix in ("always", "on_collision"):
        manifest = manifest_of(paths, prefix).load()
        assert manifest.entries["diary"].fingerprint == settings.servers["diary"].fingerprint()
        assert {owner: name for owner, name in manifest.names.items() if owner[0] != "notes"} == {
            ("diary", "open"): "open",
            ("calc", "add"): "calc__add",
        }
    pins = PinsFile(paths.pins_dir, config).load()
    assert {server for server, _ in pins.servers} == {"diary", "calc"}
    own = pins.of("diary", identity_of(settings.servers["diary"]))
    assert own is not None
    assert own.form(NOTE, "digest") is not None
    login = LoginStore(paths.auth_dir).load("diary", login_of(paths, "diary"))
    assert login is not None
    assert login.access_token == "secret-token"
    assert not login_of(paths, "notes").exists()
    assert [each.server for each in ExampleLibrary(paths.example_queries_dir).entries()] == ["diary"]
    assert most_used(paths.activity_file, config) == (("calc", "read"), ("diary", "read"))
    assert most_used(paths.activity_file, "another") == (("notes", "read"),)
    history = read_history(paths.activity_file, RecordFilter(config, upstream="diary"))
    assert [call.tool for call in history.calls] == [("diary", "read")]
    assert [search.hits for search in history.searches] == [(("diary", "read"), ("calc", "notes"))]


def test_everything_kept_under_a_servers_name_goes_with_it(paths: Paths) -> None:
    fill(paths)
    rename()
    check(paths)


def test_an_interrupted_rename_is_completed_by_another(paths: Paths) -> None:
    fill(paths)
    copy_state(paths, load_user_settings(paths), "notes", "diary")
    assert list(load_user_settings(paths).servers) == ["notes", "calc"]
    assert login_of(paths, "notes").exists()

    rename()

    check(paths)


def test_a_server_of_which_nothing_is_known_is_renamed(paths: Paths) -> None:
    rename()
    assert list(load_user_settings(paths).servers) == ["diary", "calc"]
    assert not paths.activity_file.exists()


def test_nothing_is_renamed_if_what_is_known_cannot_be_written(paths: Paths) -> None:
    fill(paths)
    before = paths.config_file.read_text()
    file = PinsFile(paths.pins_dir, paths.identity(None)).path
    file.unlink()
    file.mkdir()

    result = CliRunner().invoke(app, ["rename", "notes", "diary", "--yes"])

    assert result.exit_code == 78, result.output
    assert "cannot be written" in result.stderr
    assert paths.config_file.read_text() == before


def test_a_look_at_a_rename_moves_nothing(paths: Paths) -> None:
    fill(paths)
    CliRunner().invoke(app, ["rename", "notes", "diary", "--dry-run"])
    assert {server for server, _ in PinsFile(paths.pins_dir, paths.identity(None)).load().servers} == {"notes", "calc"}
    assert not login_of(paths, "diary").exists()
