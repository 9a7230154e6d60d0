"""Example queries of replicas: what one machine imports or removes, the others search by or forget."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from pml_gateway.errors import SharedStateError
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, LibraryEntry, definition_digest
from pml_gateway.example_queries.sharing import MAX_SHARED, SharedLibrary, shared_file
from pml_gateway.storage.sealing import Sealing
from pml_gateway.storage.shared_documents import SharedDocuments
from tests.storage.test_redis import KEY

ONE, TWO, THREE = (definition_digest(name, "", ()) for name in ("one", "two", "three"))
OWNER, USE = ExampleOrigin.OWNER, ExampleOrigin.USE


class Machine:
    """A gateway that reads its library and follows Redis, and a command there that writes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.documents = SharedDocuments(url, Sealing(KEY))
        self.command = ExampleLibrary(folder, self.documents)
        self.gateway = ExampleLibrary(folder)

    def searches_by(self) -> dict[str, list[str]]:
        self.documents.pull()
        return {digest: [each.text for each in examples] for digest, examples in self.gateway.all().items()}


@pytest.fixture
def machines(redis_url: str, empty_redis: Redis, tmp_path: Path) -> list[Machine]:
    return [Machine(redis_url, tmp_path / name) for name in ("one", "two")]


def test_what_is_written_at_one_machine_is_found_and_removed_at_the_other(machines: list[Machine]) -> None:
    one, two = machines
    one.command.put(ONE, ["open an issue"], OWNER, name="one", server="s")
    two.command.put(TWO, ["close an issue"], USE)
    expected = {ONE: ["open an issue"], TWO: ["close an issue"]}
    assert one.searches_by() == two.searches_by() == expected
    assert [(each.name, each.server) for each in two.gateway.entries() if each.digest == ONE] == [("one", "s")]
    two.command.put(ONE, ["report a bug"], OWNER)
    assert one.searches_by()[ONE] == ["report a bug"]
    assert two.command.remove([ONE]) == 1
    assert one.searches_by() == two.searches_by() == {TWO: ["close an issue"]}
    one.command.replace_all([LibraryEntry(THREE, "", "", USE, ("merge a branch",))], USE)
    assert two.searches_by() == {THREE: ["merge a branch"]}


def test_what_a_machine_had_before_is_shared_with_its_next_import(machines: list[Machine]) -> None:
    one, two = machines
    one.gateway.put(ONE, ["open an issue"], OWNER)
    one.command.put(TWO, ["close an issue"], OWNER)
    assert two.searches_by() == {ONE: ["open an issue"], TWO: ["close an issue"]}


def test_in_an_outage_nothing_is_written_at_one_machine_alone(machines: list[Machine], tmp_path: Path) -> None:
    machines[0].command.put(ONE, ["open an issue"], OWNER)
    alone = ExampleLibrary(tmp_path / "one", SharedDocuments("redis://127.0.0.1:1", Sealing(KEY)))
    with pytest.raises(SharedStateError):
        alone.put(TWO, ["close an issue"], OWNER)
    with pytest.raises(SharedStateError):
        alone.remove([ONE])
    assert set(alone.all()) == {ONE}


def test_so_many_definitions_are_shared_and_the_first_written_go() -> None:
    written = {(str(number), "owner"): ("", "", ("text",)) for number in range(MAX_SHARED + 2)}
    kept = SharedLibrary().having(written).entries
    assert len(kept) == MAX_SHARED
    assert "1:owner" not in kept and "2:owner" in kept


def test_a_library_that_nobody_shares_has_no_copy(tmp_path: Path) -> None:
    ExampleLibrary(tmp_path).put(ONE, ["open an issue"], OWNER)
    assert not shared_file(tmp_path).path.exists()
