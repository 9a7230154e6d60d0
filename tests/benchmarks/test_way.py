from __future__ import annotations

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from benchmarks.run_way import WAYS, Entry, Recorder, measure, row, tree


def leaf() -> list[int]:
    return [number * number for number in range(3)]


async def pausing() -> None:
    leaf()
    await anyio.lowlevel.checkpoint()
    leaf()


def outer() -> None:
    def inner() -> None:
        leaf()

    inner()


def entered(entries: list[Entry]) -> list[tuple[int, str]]:
    assert {entry.file for entry in entries} <= {Path(__file__).name}
    return [(entry.depth, entry.function) for entry in entries]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Path(__file__).parent)


@pytest.mark.anyio
async def test_a_coroutine_that_goes_on_after_a_pause_is_entered_once(recorder: Recorder) -> None:
    with recorder.recording() as entries:
        await pausing()
    recorder.close()
    inside = [(depth - entered(entries)[0][0], name) for depth, name in entered(entries)]
    assert inside == [(0, "pausing"), (1, "leaf"), (1, "leaf")]


def test_a_function_within_a_function_is_entered_from_it_and_threads_count(recorder: Recorder) -> None:
    with recorder.recording() as entries:
        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()
    leaf()
    recorder.close()
    assert entered(entries) == [(0, "outer"), (1, "outer.inner"), (2, "leaf")]


WAY = [Entry("a.py", "f", 0), Entry("b.py", "g", 1), Entry("b.py", "g", 1), Entry("a.py", "h", 0)]


def test_a_way_counts_distinct_functions_and_files_and_how_often_the_file_changes() -> None:
    assert row("call", WAY) == {"way": "call", "functions": 3, "files": 2, "calls": 4, "changes_of_file": 2}


def test_a_tree_shows_the_way_in_order_and_repeated_calls_once() -> None:
    assert tree(WAY) == ["a.py: f", "  b.py: g x2", "a.py: h"]


def test_every_way_is_walked_and_gives_the_right_answer() -> None:
    measured = anyio.run(measure)
    assert measured.keys() == WAYS.keys()
    assert all(measured.values())
