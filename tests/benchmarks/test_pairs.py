from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.client import AnswerError
from benchmarks.metrics import sign_test_interval
from benchmarks.processes import PeerError
from benchmarks.run_pairs import Side, check_hits, in_pairs, in_turns, interpreter, package_of, row, rows, shown
from benchmarks.run_start import Scene


def side(name: str) -> Side:
    home = Path("unused")
    return Side(name, sys.executable, home, Scene(home, 1, 0, 1))


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (100, 40, 61)],
)
def test_the_interval_of_a_median_is_that_of_published_tables(count: int, low: int, high: int) -> None:
    values = [float(value) for value in reversed(range(1, count + 1))]
    assert sign_test_interval(values) == (low, high)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_too_few_values_have_no_interval(count: int) -> None:
    assert sign_test_interval([1.0] * count) is None


def test_one_wild_pair_of_ten_decides_nothing() -> None:
    before, after = [2.0] * 10, [2.0] * 9 + [20.0]
    line = row("call ms", before, after)
    assert line == {"figure": "call ms", "before": 2, "after": 2, "ratio": 1, "upper": 1, "holds": True}


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        ([1.04] * 10, True),
        ([1.06] * 10, False),
        ([1.0] * 8 + [1.09] * 2, True),
        ([1.0] * 8 + [1.11] * 2, False),
        ([0.5] * 10, True),
    ],
)
def test_both_the_median_and_the_upper_end_have_a_limit(after: list[float], holds: bool) -> None:
    assert row("memory MiB", [1.0] * 10, after)["holds"] is holds


def test_few_pairs_are_shown_but_not_judged() -> None:
    line = row("call ms", [1.0, 1.0], [1.0, 4.0])
    assert (line["upper"], line["holds"]) == (None, None)
    assert shown(line) == {
        "figure": "call ms",
        "before": 1.0,
        "after": 2.5,
        "ratio": "2.500",
        "upper": "-",
        "holds": "-",
    }


def test_a_machine_that_slows_down_between_pairs_slows_both_sides_alike() -> None:
    pairs = [{"call ms": {"before": slow, "after": 1.02 * slow}} for slow in (1.0, 9.0, 3.0, 5.0, 2.0, 7.0)]
    [line] = rows(pairs)
    assert line["ratio"] == pytest.approx(1.02)
    assert line["upper"] == pytest.approx(1.02)
    assert shown(line)["holds"] == "yes"


def test_a_pair_is_the_median_of_its_rounds() -> None:
    rounds = [{"call ms": {"before": value, "after": 2 * value}} for value in (1.0, 3.0, 10.0, 20.0)]
    assert in_pairs(rounds, 2) == [
        {"call ms": {"before": 2.0, "after": 4.0}},
        {"call ms": {"before": 15.0, "after": 30.0}},
    ]


def test_who_goes_first_changes_every_turn() -> None:
    order: list[str] = []

    async def measure(one: Side, turn: int) -> list[float]:
        order.append(f"{one.name}{turn}")
        return [1.0 + turn, 100.0] if one.name == "after" else [5.0]

    values = anyio.run(in_turns, [side("after"), side("before")], 3, measure)
    assert order == ["after0", "before0", "before1", "after1", "after2", "before2"]
    assert values == {"after": 51.5, "before": 5.0}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"hits": []}, "not among the hits"),
        ({"hits": [{"name": "up__other"}]}, "not among the hits"),
        ({"hits": [{"name": "up__wanted"}], "ranking": "lexical"}, "words alone"),
    ],
)
def test_a_search_that_misses_its_tool_is_not_measured(answer: dict[str, Any], problem: str) -> None:
    check_hits({"hits": [{"name": "up__other"}, {"name": "up__wanted"}]}, "up__wanted")
    with pytest.raises(AnswerError, match=problem):
        check_hits(answer, "up__wanted")


def test_an_environment_is_given_by_its_folder_or_its_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert interpreter(str(tmp_path / "venv")) == interpreter(str(python)) == str(python)
    with pytest.raises(argparse.ArgumentTypeError, match="there is no"):
        interpreter(str(tmp_path / "other"))


def test_an_interpreter_without_the_package_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named pml_gateway >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(PeerError, match="No module named pml_gateway"):
        package_of(str(python))
