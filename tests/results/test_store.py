"""Stored results: one contract for every store, and what no client may do with another's."""

from __future__ import annotations

import base64
import json
import os
import random
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pml_gateway.config.settings import ReferenceSettings, Settings, StorageSettings
from pml_gateway.errors import ConfigurationError, InvalidInputError, ReferenceNotFoundError, ResultStoreError
from pml_gateway.policy.principal import Principal
from pml_gateway.results.content import Content, content_of, data_result
from pml_gateway.results.etags import META_KEY, expiring
from pml_gateway.results.store import ResultStore, open_results
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.storage.backend import Backend
from pml_gateway.storage.memory import MemoryStore
from tests.results.stores import SOURCE, Clock, everything, opened
from tests.support.examples import examples
from tests.support.principals import principal

pytestmark = pytest.mark.anyio

ANNA, BEN = principal("client:anna"), principal("client:ben")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=25,
)

Open = Callable[..., AbstractAsyncContextManager[ResultStore]]


@pytest.fixture(params=["memory", "disk", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    store = request.getfixturevalue("redis_url") if request.param == "redis" else request.param
    return partial(opened, tmp_path / "results", store=store)


def stored_in(store: str) -> Settings:
    return Settings(storage=StorageSettings(results=store))


class AnotherVersion(MemoryStore):
    """A store in which another version writes one field less."""

    async def put_many(
        self, keys: Sequence[str], values: Sequence[dict[str, Any]], *, collection: str, ttl: float | None = None
    ) -> None:
        less = [{name: each[name] for name in each if name != "source"} for each in values]
        await super().put_many(keys, less, collection=collection, ttl=ttl)


async def test_a_result_of_another_version_is_not_found() -> None:
    backend = Backend(AnotherVersion(), nullcontext(), ())

    async def open_backend() -> Backend:
        return backend

    store = ResultStore(ReferenceSettings(), open_backend, Clock())
    stored = await kept(store, [1])
    with pytest.raises(ReferenceNotFoundError):
        await store.read(ANNA, stored.ref, everything)


async def kept(store: ResultStore, value: Any, client: Principal = ANNA, source: Source = SOURCE) -> StoredResult:
    stored = await store.put(client, Content("json", value), source=source)
    assert stored is not None
    return stored


async def is_known(store: ResultStore, ref: str, client: Principal = ANNA) -> bool:
    try:
        await store.read(client, ref, everything)
    except ReferenceNotFoundError:
        return False
    return True


async def test_a_value_comes_back_as_it_was_with_its_size_hash_and_shape(open_store: Open) -> None:
    value = {"z": [1, 2.5, None, True], "a": "ünïcode \ud83d", "map": {"$ref": "#/x"}}
    async with open_store() as store:
        stored = await kept(store, value)
        _, content = await store.read(ANNA, stored.ref, everything)
    assert content == Content("json", value)
    assert list(content.value) == ["z", "a", "map"], "the order of keys is kept"
    assert stored.shape.startswith("{z: ")
    assert len(stored.sha256) == 64


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_parts_that_take_several_writes_are_put_together_again(kind: str, tmp_path: Path) -> None:
    # Text that does not compress, or one part would hold it; the Redis server of the tests takes 64 KiB at once.
    text = random.Random(1).randbytes(300_000).hex()
    async with opened(tmp_path / "results", store=kind) as store:
        stored = await store.put(ANNA, Content("text", text), source=SOURCE)
        assert stored is not None and stored.parts > 1
        assert (await store.resolve(ANNA, {"text": {"$ref": stored.ref}}, everything)).arguments == {"text": text}


async def test_unknown_foreign_expired_and_hidden_references_give_one_answer(open_store: Open) -> None:
    clock = Clock()
    async with open_store(clock=clock, ttl_seconds=100) as store:
        refs = {"foreign": (await kept(store, [1], BEN)).ref, "hidden": (await kept(store, [2])).ref}
        refs["expired"] = (await kept(store, [3])).ref
        refs["unknown"] = f"{refs['expired'][:-4]}AAAA"
        refs["malformed"] = "ref_x"
        said = {}
        for kind, ref in refs.items():
            clock.now += 200 if kind == "expired" else 0
            with pytest.raises(ReferenceNotFoundError) as caught:
                await store.resolve(ANNA, {"a": [{"$ref": ref}]}, lambda _: False)
            said[kind] = (str(caught.value).replace(ref, "REF"), caught.value.details)
            clock.now -= 200 if kind == "expired" else 0
    assert len(set(map(str, said.values()))) == 1


async def test_what_was_used_longest_ago_is_forgotten_first_under_the_cap(open_store: Open) -> None:
    async with open_store() as store:
        sizes = (await kept(store, "x" * 500)).stored_bytes
    async with open_store(max_bytes=sizes * 3) as store:
        first, second, third = [(await kept(store, "x" * 500)).ref for _ in range(3)]
        assert await is_known(store, first)
        fourth = (await kept(store, "x" * 500)).ref
        assert [await is_known(store, ref) for ref in (first, second, third, fourth)] == [True, False, True, True]
        assert store.bytes <= sizes * 3


async def test_results_written_side_by_side_stay_under_the_cap(open_store: Open) -> None:
    async def put(number: int) -> None:
        # None where it gave way to others before it was whole.
        await store.put(ANNA, Content("json", f"{number}" * 300), source=SOURCE)

    async with open_store() as store:
        size = (await kept(store, "0" * 300)).stored_bytes
    cap = 10 * size
    async with open_store(max_bytes=cap) as store, anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(put, number)
    assert 0 < store.bytes <= cap


async def test_what_is_larger_than_the_cap_is_not_kept(open_store: Open) -> None:
    async with open_store(max_bytes=100) as store:
        assert await store.put(ANNA, Content("json", list(range(1000))), source=SOURCE) is None
        assert store.bytes == 0


async def test_many_small_results_take_no_more_memory_than_the_cap(tmp_path: Path) -> None:
    cap = 256 * 1024
    async with opened(tmp_path, max_bytes=cap) as store:
        await kept(store, "first, which opens the store")
        tracemalloc.start()
        try:
            for number in range(500):
                await kept(store, number)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert cap / 2 < taken < cap * 1.5


async def test_uses_are_forgotten_with_the_result_they_are_of(open_store: Open) -> None:
    async with open_store() as store:
        size = (await kept(store, "x" * 500)).stored_bytes
    async with open_store(max_bytes=size * 2) as store:
        ref = (await kept(store, "x" * 500)).ref
        call = Source(("up", "use"), "up__use", refs=(ref,))
        store.note_use(call)
        assert store.uses(ref) == [call]
        for _ in range(2):
            await kept(store, "x" * 500)
        store.note_use(call)
        assert store.uses(ref) == []


async def test_expired_results_make_room_before_live_ones_do(open_store: Open) -> None:
    clock = Clock()
    async with open_store(clock=clock, ttl_seconds=50) as store:
        old = await kept(store, "old")
        clock.now += 60
        await kept(store, "new")
        assert not await is_known(store, old.ref)
        assert store.bytes < 2 * old.stored_bytes


@pytest.mark.parametrize("kind", ["disk", "redis"])
async def test_a_restart_keeps_results_with_their_source(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = request.getfixturevalue("redis_url") if kind == "redis" else kind
    async with opened(tmp_path, store=where) as store:
        stored = await kept(store, {"a": 1}, source=Source(("up", "make"), "up__make", refs=("ref_x",), at=1.0))
    async with opened(tmp_path, store=where) as store:
        assert (await store.read(ANNA, stored.ref, everything))[1].value == {"a": 1}
        assert await store.look_up(ANNA, stored.ref, everything) == stored
        assert not await is_known(store, stored.ref, BEN)


async def test_the_disk_store_is_for_its_owner_only_and_names_no_handle(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    async with opened(folder, store="disk") as store:
        stored = await kept(store, "value")
        raw = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert folder.stat().st_mode & 0o077 == 0
    assert stored.ref.encode() not in raw


async def test_a_store_that_does_not_answer_is_our_error_and_names_no_password() -> None:
    async with opened(Path(), store="redis://:hunter2@127.0.0.1:1/0") as store:
        with pytest.raises(ResultStoreError) as caught:
            await kept(store, "x")
    assert caught.value.retryable
    assert "hunter2" not in str(caught.value)


async def test_a_variable_that_is_missing_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="PML_TEST_STORE is not set"):
        async with open_results(stored_in("disk:${env:PML_TEST_STORE}"), tmp_path):
            pass


async def test_where_a_folder_cannot_be_written_results_are_kept_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with open_results(stored_in(f"disk:{tmp_path}/file/folder"), tmp_path) as store:
        reference = await kept(store, "x")
        assert await kept(store, "y") != reference
    assert "cannot be written (Not a directory): stored results are kept in memory" in caplog.text


@pytest.mark.field("A8")
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o700])
@pytest.mark.parametrize("length", [10, 300_000])
async def test_results_on_disk_are_their_owners_alone_in_any_folder(tmp_path: Path, mode: int, length: int) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "notes.txt").write_text("somebody's own")
    (folder / "notes.txt").chmod(0o644)
    settings = stored_in(f"disk:{folder}")
    before = os.umask(0)
    try:
        async with open_results(settings, tmp_path) as store:
            await kept(store, "".join(random.choices("abcdefgh", k=length)))
            # As an older version left them.
            for path in folder.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
        async with open_results(settings, tmp_path) as store:
            await kept(store, "".join(random.choices("abcdefgh", k=length)))
            modes = {path: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    finally:
        os.umask(before)
    assert modes.pop(folder / "notes.txt") == 0o644
    assert len(modes) >= (3 if length > 1000 else 1)
    assert set(modes.values()) == {0o600}
    assert folder.stat().st_mode & 0o777 == mode


async def test_a_folder_that_holds_no_store_fails_the_reference_and_not_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "cache.db").write_text("no database" * 100)
    async with open_results(stored_in(f"disk:{tmp_path}"), tmp_path) as store:
        with pytest.raises(ResultStoreError, match="cannot be used"):
            await kept(store, "x")


def test_a_store_of_no_known_kind_is_no_setting() -> None:
    with pytest.raises(ValidationError, match="write memory, disk"):
        StorageSettings(results="memroy")


async def test_the_longest_answer_stays_under_two_thousand_bytes_twice_on_the_wire(tmp_path: Path) -> None:
    hostile = {f"\\\"'{number}漢字\n": {"k": '\\"' * 400} for number in range(300)}
    texts = ['"\\' * 50_000, "漢" * 50_000, "\x00\x1f" * 50_000]
    async with opened(tmp_path) as store:
        for content in (Content("json", hostile), *(Content("text", text) for text in texts)):
            stored = await store.put(ANNA, content, source=SOURCE)
            assert stored is not None
            etag = expiring("0" * 22, stored.expires_at)
            result = {**data_result({**stored.answer(), "etag": etag}), "_meta": {META_KEY: etag}}
            assert len(json.dumps(result, ensure_ascii=False).encode()) < 2000


async def arrives(folder: Path, content: Content, around: Any) -> None:
    """A value put in by reference, deep inside arguments, is the value."""
    async with opened(folder) as store:
        stored = await store.put(ANNA, content, source=SOURCE)
        assert stored is not None
        arguments = {"deep": [around, {"here": {"$ref": stored.ref}}], "other": around}
        resolved = await store.resolve(ANNA, arguments, everything)
    assert json.dumps(resolved.arguments) == json.dumps({"deep": [around, {"here": content.value}], "other": around})
    assert resolved.refs == (stored.ref,)


def test_any_json_survives_a_reference_anywhere_in_arguments(tmp_path: Path) -> None:
    with start_blocking_portal() as portal:

        @settings(max_examples=examples(100))
        @given(value=JSON, around=JSON)
        def check(value: Any, around: Any) -> None:
            portal.call(arrives, tmp_path, Content("json", value), around)

        check()


def test_text_and_bytes_arrive_as_they_were_sent(tmp_path: Path) -> None:
    with start_blocking_portal() as portal:

        @settings(max_examples=examples(50))
        @given(text=st.text(), data=st.binary())
        def check(text: str, data: bytes) -> None:
            encoded = base64.b64encode(data).decode()
            results: list[tuple[dict[str, Any], Any]] = [
                ({"content": [{"type": "text", "text": text}]}, text),
                ({"content": [{"type": "image", "data": encoded, "mimeType": "image/png"}]}, encoded),
                ({"content": [{"type": "text", "text": "x"}], "structuredContent": {"t": text}}, {"t": text}),
            ]
            for result, value in results:
                assert content_of(result).value == value
                portal.call(arrives, tmp_path, content_of(result), None)

        check()


async def test_a_path_reads_json_inside_text_and_what_it_puts_in_is_not_searched_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        inner = await kept(store, "secret of another reference")
        text = json.dumps({"items": [{"$ref": inner.ref}, 7]})
        stored = await store.put(ANNA, Content("text", text), source=SOURCE)
        assert stored is not None
        by_path = await store.resolve(ANNA, {"v": {"$ref": stored.ref, "path": "items"}}, everything)
        assert by_path.arguments == {"v": [{"$ref": inner.ref}, 7]}


async def test_json_schema_references_and_turned_off_references_pass_untouched(tmp_path: Path) -> None:
    arguments = {"schema": {"$ref": "#/$defs/a"}, "other": {"$ref": 7, "path": "x"}}
    async with opened(tmp_path) as store:
        assert (await store.resolve(ANNA, arguments, everything)).arguments is arguments
    async with opened(tmp_path, mode="off") as store:
        given_ = {"a": {"$ref": "ref_0123456789012345678901"}}
        assert (await store.resolve(ANNA, given_, everything)).arguments is given_


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"paht": "a"}, "has other keys: paht"),
        ({"path": ["a"]}, "is no text"),
        ({"path": "nope.x"}, "the keys are 'items'"),
        ({"path": "items[99999999999]"}, "no item [99999999999] in a list of 2"),
        ({"path": "__class__"}, "finds nothing"),
        ({"path": "items[0"}, "is no JMESPath"),
        ({"path": "[@,@][]|" * 60 + "@"}, "too much"),
        ({"path": "x" * 2000}, "at most 1000"),
    ],
)
async def test_a_wrong_reference_is_told_with_its_remedy(tmp_path: Path, reference: dict[str, Any], said: str) -> None:
    async with opened(tmp_path) as store:
        stored = await kept(store, {"items": [1, 2]})
        with pytest.raises(InvalidInputError) as caught:
            await store.resolve(ANNA, {"v": {"$ref": stored.ref, **reference}}, everything)
    assert said in str(caught.value)


async def test_references_that_would_multiply_a_value_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        stored = await store.put(ANNA, Content("text", "x" * 1_000_000), source=SOURCE)
        assert stored is not None
        with pytest.raises(InvalidInputError, match="64 MiB"):
            await store.resolve(ANNA, {"v": [{"$ref": stored.ref}] * 100}, everything)
        with pytest.raises(InvalidInputError, match="more than 200 references"):
            await store.resolve(ANNA, {"v": [{"$ref": stored.ref}] * 201}, everything)


async def test_storing_is_taken_back_whole_when_the_request_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await kept(store, "x" * 1000)
        assert scope.cancelled_caught
        assert store.bytes == 0


async def test_others_get_their_turn_again_and_again_while_a_large_value_is_stored_and_read(open_store: Open) -> None:
    if "redis" in str(open_store):
        pytest.skip("the Redis server of the tests takes 64 KiB at once")
    text = random.Random(2).randbytes(2_000_000).hex()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with open_store() as store, anyio.create_task_group() as tasks:
        await kept(store, "first, which opens the store")
        tasks.start_soon(take_turns)
        stored = await store.put(ANNA, Content("text", text), source=SOURCE)
        assert stored is not None and turns > stored.parts
        turns = 0
        await store.read(ANNA, stored.ref, everything)
        assert turns > stored.parts
        tasks.cancel_scope.cancel()


async def test_one_clients_many_results_evict_its_own_and_no_others(open_store: Open) -> None:
    async with open_store(max_bytes=200_000) as store:
        mine = [await kept(store, {"n": n}, BEN) for n in range(5)]
        flood = [await kept(store, {"n": n}) for n in range(300)]
        assert [await is_known(store, each.ref, BEN) for each in mine] == [True] * 5
        assert [await is_known(store, flood[at].ref) for at in (0, -1)] == [False, True]
        assert store.bytes <= 200_000


async def test_a_lone_client_may_fill_the_store_until_another_comes(open_store: Open) -> None:
    async with open_store(max_bytes=100_000) as store:
        for n in range(100):
            await kept(store, {"n": n})
        full = store.bytes
        assert full > 95_000
        others = [await kept(store, {"n": n}, BEN) for n in range(20)]
        assert all([await is_known(store, each.ref, BEN) for each in others])
