"""What clients are told when they connect: the most useful first, nothing twice, and never more than its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.exposure.instructions import CUT, HOW_TO, NO_SYSTEMS, OWN, Systems, instructions
from pml_gateway.exposure.token_count import count_tokens
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

LONG = " ".join(f"Rule {number} says that you look before you leap." for number in range(100))


def test_the_own_line_and_the_systems_come_first_then_what_servers_say() -> None:
    text = instructions(Systems(["a", "b"]), {"a": "Be kind.", "b": "Be quick."}, 400, can_search=True)
    assert text == f"{OWN} {HOW_TO}\n\nSystems: a, b.\n\n## a\nBe kind.\n\n## b\nBe quick."


def test_without_the_search_it_is_not_named() -> None:
    assert instructions(NO_SYSTEMS, {}, 400, can_search=False) == OWN


def test_equal_and_contained_texts_are_said_once_under_every_name() -> None:
    said = {"part": "Be  kind.", "one": "Be kind. Be quick.", "other": "Be kind.\nBe quick.", "own": "Else."}
    text = instructions(NO_SYSTEMS, said, 400, can_search=True)
    assert text.count("kind") == 1
    assert "## part, one, other\nBe kind. Be quick." in text
    assert text.endswith("## own\nElse.")


def test_long_texts_share_what_short_ones_leave_and_end_with_a_sentence() -> None:
    text = instructions(
        Systems(["a"]), {"long": LONG, "short": "Be kind.", "wide": f"More. {LONG}"[:-1]}, 300, can_search=True
    )
    assert 250 < count_tokens(text) <= 300
    own, short, long = (
        next(part for part in text.split("\n\n") if part.startswith(f"## {name}")) for name in ("wide", "short", "long")
    )
    assert short == "## short\nBe kind."
    for part in (own, long):
        assert part.endswith(f"leap.{CUT}")
    assert abs(count_tokens(own) - count_tokens(long)) < 20


def test_a_first_sentence_that_is_too_long_is_cut_at_a_word() -> None:
    text = instructions(NO_SYSTEMS, {"a": "word " * 900}, 100, can_search=True)
    assert text.endswith(f" word word{CUT}")


def test_a_budget_of_nothing_says_nothing() -> None:
    assert instructions(Systems(["a"]), {"a": "Be kind."}, 0, can_search=True) == ""


TEXTS = st.text("ab Z.\n:é🙂#\t", max_size=60).map(lambda text: text * 9) | st.sampled_from([LONG, LONG[5:900]])


@given(
    said=st.dictionaries(st.sampled_from(["a", "long-name_1", "ß"]), TEXTS, max_size=3),
    budget=st.integers(0, 500),
    can_search=st.booleans(),
)
def test_no_text_exceeds_the_budget(said: dict[str, str], budget: int, can_search: bool) -> None:
    assert count_tokens(instructions(Systems(list(said)), said, budget, can_search=can_search)) <= budget


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("gateway", "path", "told"),
    [
        ({"tools_exposure": "meta_only"}, "", True),
        ({"tools_exposure": "hybrid"}, "", True),
        ({"tools_exposure": "hybrid", "hybrid": {"expose_meta_tools": False}}, "", False),
        ({"tools_exposure": "full_proxy"}, "", False),
        ({"tools_exposure": "full_proxy"}, "/meta_only", True),
        ({"tools_exposure": "meta_only"}, "/full_proxy", False),
    ],
)
async def test_clients_are_told_to_search_only_if_the_search_is_on_their_list(
    tmp_path: Path, gateway: dict[str, Any], path: str, told: bool
) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}, gateway=gateway) as served:
        listed = await served.names(path)
        said = (await served.result("server/discover", path=path))["instructions"]
    assert ("search_tools" in listed) == ("search_tools" in said) == told
