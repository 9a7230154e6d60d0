"""The choice of a preset depends on what lists cost, who reads them, and what matters."""

from __future__ import annotations

import pytest

from pml_gateway.reports.recommend import Priority, Situation, recommend


def situation(
    full: int, priority: Priority, *, deferring: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> Situation:
    return Situation(5, full, 750, 200, 200_000, priority, deferring, others)


@pytest.mark.parametrize(
    ("full", "priority", "preset"),
    [
        (1_700, Priority.TOKENS, "full_proxy"),
        (1_800, Priority.TOKENS, "meta_only"),
        (100_000, Priority.TOKENS, "meta_only"),
        (30_000, Priority.ACCURACY, "hybrid_permissive"),
        (30_100, Priority.ACCURACY, "hybrid_balanced"),
        (10_000, Priority.COMPATIBILITY, "full_proxy"),
        (10_100, Priority.COMPATIBILITY, "hybrid_permissive"),
    ],
)
def test_the_size_of_the_whole_list_decides_beside_what_matters(full: int, priority: Priority, preset: str) -> None:
    chosen = recommend(situation(full, priority, others=("cursor",)))
    assert chosen.preset == preset
    assert f"{full:,} tokens" in chosen.reason


def test_a_client_that_searches_itself_may_have_everything_and_is_told_otherwise_not_to() -> None:
    alone = recommend(situation(90_000, Priority.COMPATIBILITY, deferring=("claude-code",)))
    assert alone.preset == "full_proxy"
    mixed = recommend(situation(90_000, Priority.COMPATIBILITY, deferring=("claude-code",), others=("cursor",)))
    assert mixed.preset == "hybrid_permissive"
    assert "pml connect claude-code" in mixed.notes[0]
    small = recommend(situation(1_000, Priority.TOKENS, deferring=("claude-code",), others=("cursor",)))
    assert small.notes == ("cursor reads the whole list in every conversation",)
