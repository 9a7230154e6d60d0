"""The manifest survives restarts, damage and other processes that write it at the same time."""

from __future__ import annotations

import json
import logging
import multiprocessing
import stat
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile
from tests.catalog.listings import JSON, listing, raw_tool


def entry(*tools: str, at: float = 1.0, fingerprint: str = "f") -> ManifestEntry:
    return ManifestEntry(fingerprint, tuple(raw_tool(tool) for tool in tools), at, "handshake", "server", "1.0")


def tools_of(manifest: Manifest, upstream_id: str) -> list[str]:
    return [tool["name"] for tool in manifest.entries[upstream_id].tools]


@pytest.fixture
def file(tmp_path: Path) -> ManifestFile:
    return ManifestFile(tmp_path / "manifests", "config.yaml", "always")


def test_a_saved_manifest_is_loaded_as_it_was(file: ManifestFile) -> None:
    catalog = build_catalog([listing("a", "read", "größe"), listing("b", "read")])
    manifest = Manifest({"a": entry("read", "größe"), "b": entry("read", at=2.5)}, catalog.assignments)
    assert file.load() == Manifest()
    assert file.save(manifest) == manifest
    assert file.load() == manifest


def test_what_was_listed_again_alike_is_worth_a_write_after_a_while_only() -> None:
    names = {("a", "read"): "read"}
    saved = Manifest({"a": entry("read")}, names)
    assert Manifest({"a": entry("read", at=60.0)}, names).is_covered_by(saved)
    for other in (
        Manifest({"a": entry("read", at=3600.0)}, names),
        Manifest({"a": entry("read", at=62.0)}, names),
        Manifest({"a": entry("read", "write")}, names),
        Manifest({"a": entry("read", fingerprint="g")}, names),
        Manifest({"a": entry("read")}, {("a", "read"): "a__read"}),
        Manifest({}, names),
    ):
        assert not other.is_covered_by(saved)


def test_each_configuration_has_a_manifest_of_its_own(tmp_path: Path) -> None:
    ManifestFile(tmp_path, "one", "always").save(Manifest({"a": entry("read")}))
    assert ManifestFile(tmp_path, "two", "always").load() == Manifest()


def test_names_stay_the_same_across_a_restart(file: ManifestFile) -> None:
    before = build_catalog([listing("a", "read"), listing("b", "read")], prefix="on_collision")
    file.save(Manifest({"a": entry("read"), "b": entry("read")}, before.assignments))
    after = build_catalog(
        [listing("b", "read"), listing("a", "read")], prefix="on_collision", earlier=file.load().names
    )
    assert {tool.source: tool.qualified_name for tool in after.tools} == {"a:read": "read", "b:read": "b__read"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 99, "names": {}, "upstreams": {}}',
        b'{"format": 1}',
        b'{"format": 1, "names": {"a": {"read": 5}}, "upstreams": {}}',
        b'{"format": 1, "names": [], "upstreams": []}',
        b'{"format": 1, "names": {}, "upstreams": {"a": {"fingerprint": "f", "tools": [], "listed_at": "x"}}}',
    ],
)
def test_a_damaged_manifest_is_empty_and_the_next_save_replaces_it(file: ManifestFile, content: bytes) -> None:
    manifest = Manifest({"a": entry("read")}, {("a", "read"): "a__read"})
    file.save(manifest)
    file.path.write_bytes(content)
    assert file.load() == Manifest()
    file.save(manifest)
    assert file.load() == manifest


@given(content=JSON, names=JSON, upstreams=JSON, one=JSON)
def test_any_json_on_disk_is_loaded_without_an_error(
    content: object, names: object, upstreams: object, one: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = ManifestFile(tmp_path_factory.getbasetemp(), "any", "always")
    entries = {"fingerprint": one, "tools": one, "listed_at": 1, "era": "", "server": one}
    for raw in (
        content,
        {"format": 1, "names": names, "upstreams": upstreams},
        {"format": 1, "names": {"a": one}, "upstreams": {"a": entries}},
    ):
        file.path.write_text(json.dumps(raw))
        manifest = file.load()
        assert all(isinstance(name, str) for name in manifest.names.values())


def test_a_truncated_manifest_is_reported(file: ManifestFile, caplog: pytest.LogCaptureFixture) -> None:
    file.save(Manifest({"a": entry("read")}))
    file.path.write_bytes(file.path.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING):
        file.load()
    assert "is unreadable" in caplog.text


def test_the_newest_listing_of_an_upstream_wins(file: ManifestFile) -> None:
    file.save(Manifest({"a": entry("new", at=2), "b": entry("old", at=1)}))
    merged = file.save(Manifest({"a": entry("old", at=1), "b": entry("new", at=2)}))
    assert (tools_of(merged, "a"), tools_of(merged, "b")) == (["new"], ["new"])
    assert file.load() == merged


def test_a_listing_of_another_definition_of_the_server_does_not_win(file: ManifestFile) -> None:
    file.save(Manifest({"a": entry("other", at=2, fingerprint="other")}))
    assert tools_of(file.save(Manifest({"a": entry("mine", at=1)})), "a") == ["mine"]


def test_the_first_name_given_wins_and_no_name_has_two_owners(file: ManifestFile) -> None:
    both = {"a": entry("read"), "b": entry("read")}
    file.save(Manifest(both, {("a", "read"): "read"}))
    merged = file.save(Manifest(both, {("a", "read"): "a__read", ("b", "read"): "read", ("b", "write"): "write"}))
    assert merged.names == {("a", "read"): "read", ("b", "write"): "write"}


def test_a_server_that_is_gone_from_the_configuration_is_forgotten(file: ManifestFile) -> None:
    file.save(Manifest({"a": entry("read"), "b": entry("read")}, {("a", "read"): "x", ("b", "read"): "y"}))
    file.save(Manifest({"a": entry("read")}, {("a", "read"): "x"}), configured=["a"])
    assert file.load() == Manifest({"a": entry("read")}, {("a", "read"): "x"})


def test_a_configured_server_that_only_another_process_reached_is_kept(file: ManifestFile) -> None:
    other = Manifest({"b": entry("read")}, {("b", "read"): "read"})
    file.save(other)
    merged = file.save(Manifest({"a": entry("read")}, {("a", "read"): "a__read"}), configured=["a", "b"])
    assert tools_of(merged, "b") == ["read"]
    assert merged.names[("b", "read")] == "read"
    assert file.load() == merged


def test_only_the_owner_can_read_a_manifest(file: ManifestFile) -> None:
    file.save(Manifest({"a": entry("read")}))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_nothing_but_the_manifest_and_its_lock_is_left_behind(file: ManifestFile) -> None:
    for _ in range(3):
        file.save(Manifest({"a": entry("read")}))
    assert {path.suffix for path in file.path.parent.iterdir()} == {".json", ".lock"}


def test_a_failed_write_leaves_the_manifest_as_it_was(file: ManifestFile) -> None:
    before = Manifest({"a": entry("read")})
    file.save(before)
    with pytest.raises(TypeError):
        file.save(Manifest({"a": ManifestEntry("f", ({"name": object()},), 9.0)}))
    assert file.load() == before
    assert len(list(file.path.parent.iterdir())) == 2


ROUNDS = 40


def _save_repeatedly(directory: Path, mine: str, start: Barrier) -> None:
    file = ManifestFile(directory, "shared", "always")
    start.wait(30)
    for number in range(1, ROUNDS + 1):
        tools = entry(*(f"{mine}{i}" for i in range(number)), at=float(number))
        # Both also claim names of one third server, of which each tool may be given one name only.
        names = {("c", f"t{i}"): f"{mine}_{i}" for i in range(number)}
        file.save(Manifest({mine: tools, "c": entry("t", at=0.0)}, names), configured=["a", "b", "c"])


def test_two_processes_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    writers = [context.Process(target=_save_repeatedly, args=(tmp_path, name, start)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    file = ManifestFile(tmp_path, "shared", "always")
    start.wait(30)
    names: dict[tuple[str, str], str] = {}
    while any(writer.is_alive() for writer in writers):
        seen = dict(file.load().names)
        # A reader never meets half a file, and a name once given stays.
        assert names.items() <= seen.items()
        names = seen
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]
    final = file.load()
    assert tools_of(final, "a") == [f"a{i}" for i in range(ROUNDS)]
    assert tools_of(final, "b") == [f"b{i}" for i in range(ROUNDS)]
    assert set(final.names) == {("c", f"t{i}") for i in range(ROUNDS)}
    assert names.items() <= final.names.items()
