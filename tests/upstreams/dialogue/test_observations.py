from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.upstreams.dialogue.observations import MAX_SERVERS, ObservationStore

pytestmark = pytest.mark.anyio

JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from(["one", "version", "calm"]), inner)),
)
LOOK = ("tools/call", "look")


async def kept(habits: ObservationStore) -> None:
    """End as a gateway does, whose habits are written at the latest then."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(habits.keep)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_what_was_seen_of_a_server_outlives_the_gateway(tmp_path: Path) -> None:
    file = tmp_path / "habits.json"
    habits = ObservationStore(file)
    habit = habits.of("one")
    habit.meet("server 1")
    habit.answered_calmly(LOOK, habit.calm)
    habit.answered_calmly(("resources/read", "file:///secret"), habit.calm)
    habit.note_unspoken("2026-07-28")
    await kept(habits)
    assert "secret" not in file.read_text(encoding="utf-8")

    again = ObservationStore(file).of("one")
    again.meet("server 1")
    assert again.calm == {LOOK}
    assert again.speaks_not("2026-07-28")
    assert not again.speaks_not("2025-11-25")
    assert ObservationStore(file).of("another").calm == set()


async def test_another_version_of_the_server_is_seen_anew(tmp_path: Path) -> None:
    habit = ObservationStore(tmp_path / "habits.json").of("one")
    habit.meet("server 1")
    running = habit.calm
    habit.answered_calmly(LOOK, running)
    habit.note_unspoken("2026-07-28")
    habit.meet("server 2")
    # A request that began before adds nothing to what is known of this one.
    habit.answered_calmly(("tools/call", "late"), running)
    assert habit.calm == set()
    assert not habit.speaks_not("2026-07-28")


async def test_two_gateways_keep_what_both_have_seen_and_not_without_end(tmp_path: Path) -> None:
    file = tmp_path / "habits.json"
    first, second = ObservationStore(file), ObservationStore(file)
    for habits, name in ((first, "one"), (second, "two")):
        habits.of(name).answered_calmly(LOOK, habits.of(name).calm)
        await kept(habits)
    assert ObservationStore(file).of("one").calm == ObservationStore(file).of("two").calm == {LOOK}
    for number in range(MAX_SERVERS):
        first.of(str(number)).meet("1")
    await kept(first)
    assert len(json.loads(file.read_text(encoding="utf-8"))["servers"]) == MAX_SERVERS


@given(st.one_of(JSON, st.fixed_dictionaries({"format": st.just(1), "servers": JSON})))
def test_a_file_of_any_content_is_begun_anew(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    file = tmp_path_factory.getbasetemp() / "habits.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    assert ObservationStore(file).of("one").calm == set()
