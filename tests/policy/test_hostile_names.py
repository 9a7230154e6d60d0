"""No server takes a name of another's, and no rule about one lets another's tools in, whatever servers call them."""

from __future__ import annotations

from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.hostile_names import CASES, Case, faults


@settings(max_examples=examples(200))
@given(case=CASES)
def test_what_begins_with_a_servers_id_is_that_servers_or_nobodys(case: Case) -> None:
    assert faults(case) == []
