"""The table of kinds: it has every file that the package writes, at the place and with the limits of the code."""

from __future__ import annotations

import ast
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import pytest

from pml_gateway.activity.migration import MAX_STEPS
from pml_gateway.clients.backups import ClientBackups
from pml_gateway.config.edits.edit import KEPT_BACKUPS
from pml_gateway.example_queries.enrichment import MAX_TRIED
from pml_gateway.example_queries.library import KEPT_DAYS, ExampleLibrary
from pml_gateway.example_queries.library import MAX_ENTRIES as MAX_DEFINITIONS
from pml_gateway.example_queries.sharing import MAX_SHARED
from pml_gateway.files import locked
from pml_gateway.index.cache import ENTRIES_PER_TOOL, MAX_ENTRIES
from pml_gateway.paths import Paths
from pml_gateway.processes.child_log import MAX_LOG_BYTES
from pml_gateway.results.learning import MAX_LEARNED
from pml_gateway.secrets.env_file import MAX_ENV_FILE_BYTES
from pml_gateway.storage import kinds
from pml_gateway.storage.kinds import KINDS, StorageShape, StoredKind
from pml_gateway.storage.places import PLACES
from pml_gateway.telemetry.log_file import MAX_BYTES, OLD_LOGS
from pml_gateway.trust.pins_file import MAX_SERVER_BYTES, PinsFile
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.waiting import until
from tests.test_architecture import called, modules, nodes

pytestmark = pytest.mark.anyio

WRITERS = {
    "activity/audit.py": "lines that are appended, and must not be replaced",
    "cli/example_queries.py": "a file that its owner names",
    "cli/tokens.py": "a file that its owner names",
    "clients/backups.py": "bytes of clients' files",
    "clients/connect.py": "clients' files",
    "config/edits/edit.py": "the configuration",
    "demo/definitions.py": "the folder of a demo",
    "demo/servers/files.py": "the folder of a demo",
    "local/starting.py": "in run/, for other bridges, and a log",
    "local/up_request.py": "in run/, for the next gateway",
    "reports/query_files.py": "a file that its owner names",
    "processes/child_log.py": "logs",
    "secrets/env_file.py": "secrets.env",
    "service/manager.py": "a unit of the system",
    "telemetry/log_file.py": "logs",
}
"""Modules outside of storage/ that write files, each with what."""


def test_every_document_names_its_kind_and_every_kind_of_document_is_one() -> None:
    named = [
        ast.unparse(node.args[0]).removeprefix("kinds.")
        for tree in modules().values()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("Document", "model_document")
    ]
    found = {name for name in named if name != "kind"}
    expected = {
        name
        for name, kind in vars(kinds).items()
        if isinstance(kind, StoredKind) and kind.shape is StorageShape.DOCUMENT
    }
    assert found == expected


def test_files_are_written_by_storage_and_by_what_writes_for_others() -> None:
    writing = {"write_atomically", "write_text", "write_bytes", "O_CREAT"}
    found = {
        module
        for module, tree in modules().items()
        if writing & {name.rpartition(".")[2] for name in called(tree)} and not module.startswith("storage/")
    }
    assert found - {"files.py"} == WRITERS.keys()


async def test_every_file_of_a_gateway_that_serves_is_of_a_kind(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"storage": {"results": "disk"}, "references": {"mode": "all", "threshold_tokens": 1}}

    async def log(*_: object) -> dict[str, Any]:
        return text_result("one line " * 2000)

    server = ScriptedServer([tool("log")], log)
    async with serving(tmp_path, {"git": server}, **settings) as gateway:
        await gateway.call("git__log")
        await anyio.to_thread.run_sync(gateway.runtime.gateway.shared.activity.flush)
        home = paths_in(tmp_path).home

        def of_kinds() -> set[Path]:
            return {path for kind in KINDS for path in home.glob(kind.location)}

        def folders() -> set[str]:
            return {path.relative_to(home).parts[0] for path in of_kinds()}

        await until(lambda: {"activity.db-wal", "manifest", "trust", "cache", "results"} <= folders())
        # A document that is being replaced has a second file for a moment.
        await until(lambda: {path for path in home.rglob("*") if path.is_file()} <= of_kinds())


def test_damaged_files_that_are_set_aside_are_of_a_kind(tmp_path: Path) -> None:
    pins, library = PinsFile(tmp_path / "trust", "config"), ExampleLibrary(tmp_path / "example-queries")
    for path in (pins.path, library.path):
        path.parent.mkdir()
        path.write_bytes(b"nothing that anyone can read" * 100)
    assert (pins.load().servers, library.all()) == ({}, {})
    damaged = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.suffix for path in damaged} == {".damaged"}
    assert damaged <= {path for kind in KINDS for path in tmp_path.glob(kind.location)}


def test_every_path_of_the_gateway_belongs_to_a_kind() -> None:
    paths = Paths.from_environ({"PML_HOME": "/pml", "HOME": "/"})
    roots = {PurePosixPath(kind.location).parts[0] for kind in KINDS}
    named = {
        field.name: getattr(paths, field.name).relative_to("/pml") for field in fields(paths) if field.name != "home"
    }
    known = {*(path.parts[0] for path in named.values()), *(place.name for place in PLACES)}
    assert {name for name in known if not any(fnmatch(name, root) for root in roots)} == set()
    assert ClientBackups(paths).folder == Path("/pml/backups")


def test_the_locks_next_to_changed_files_are_of_a_kind(tmp_path: Path) -> None:
    for name in ("config.yaml", "removed.json", "secrets.env", "manifest/one.json"):
        with locked(tmp_path / name):
            pass
    locks = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(locks) == 4
    assert locks <= {path for kind in KINDS for path in tmp_path.glob(kind.location)}


def test_limits_are_those_of_the_code() -> None:
    limits: dict[StoredKind, list[float]] = {
        kinds.OUTPUT_SHAPES: [MAX_LEARNED],
        kinds.VECTORS: [MAX_ENTRIES, ENTRIES_PER_TOOL],
        kinds.PINS: [MAX_SERVER_BYTES // 1024**2],
        kinds.EXAMPLE_QUERIES: [MAX_DEFINITIONS],
        kinds.TRIED: [MAX_TRIED],
        kinds.SHARED_EXAMPLES: [MAX_SHARED],
        kinds.MIGRATION_STEPS: [MAX_STEPS],
    }
    for kind, figures in limits.items():
        assert all(f"{figure:,}" in kind.limit for figure in figures), kind
    assert str(KEPT_DAYS) in kinds.EXAMPLE_QUERIES.lifetime
    by_location = {kind.location: kind.limit for kind in KINDS}
    assert by_location["config.yaml.bak-*"] == str(KEPT_BACKUPS)
    assert f"{2 * MAX_LOG_BYTES // 1024**2} MiB for each server" in by_location["logs/*"]
    assert f"{(1 + OLD_LOGS) * MAX_BYTES // 1024**2} MiB for each gateway" in by_location["logs/*"]
    assert by_location["secrets.env"] == f"{MAX_ENV_FILE_BYTES // 1024} KiB"
