"""A verdict on every visible tool says what the list really does."""

from __future__ import annotations

from hypothesis import given, settings

from pml_gateway.index.selection import Cut
from pml_gateway.reports.verdicts import ExplainedTool, Omission, verdicts
from pml_gateway.types import ExposureMode
from tests.exposure.test_table import Case, cases, make_case
from tests.support.examples import examples


def judged(case: Case) -> dict[str, ExplainedTool]:
    ownership = case.catalog.ownership
    found = verdicts(case.mode, case.visible(), case.select, case.settings, case.intent, ownership=ownership)
    return {verdict["name"]: verdict for verdict in found}


@settings(max_examples=examples(300))
@given(case=cases())
def test_the_verdicts_are_what_is_listed_in_every_mode_and_setting(case: Case) -> None:
    found = judged(case)
    assert set(found) == {tool.qualified_name for tool in case.visible()}
    assert {name for name, verdict in found.items() if verdict["listed"]} == case.expose().names()
    assert all(verdict["reason"] in {*Omission, *Cut} for verdict in found.values() if not verdict["listed"])


def test_a_score_below_the_threshold_is_told_with_both_numbers_and_its_place() -> None:
    verdict = judged(make_case(ExposureMode.SEMANTIC, "read", semantic_threshold=0.7))["fs__write"]
    assert (verdict["reason"], verdict["score"]) == (Cut.THRESHOLD, 0.65)
    assert (verdict["limit"], verdict["place"]) == (0.7, 3)


def test_what_the_count_cuts_is_told_from_what_the_tokens_cut() -> None:
    by_count = judged(make_case(ExposureMode.HYBRID, "read", max_underlying_tools=2))
    assert (by_count["fs__write"]["reason"], by_count["fs__write"]["limit"]) == (Omission.COUNT_CAP, 2)
    by_tokens = judged(make_case(ExposureMode.HYBRID, "read", max_tokens=1))
    assert {by_tokens[name]["reason"] for name in ("fs__read", "git__log")} == {Omission.TOKEN_CAP}
    assert by_tokens["git__diff"]["reason"] == Cut.THRESHOLD


def test_without_an_intent_only_the_whitelist_is_in() -> None:
    found = judged(make_case(ExposureMode.HYBRID, whitelisted_tools=("git:log",)))
    assert (found["git__log"]["listed"], found["git__log"]["reason"]) == (True, "whitelisted")
    assert found["fs__read"]["reason"] == Omission.NO_INTENT
