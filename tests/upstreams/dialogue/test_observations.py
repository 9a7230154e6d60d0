"""Observations of a server hold for one version of it."""

from __future__ import annotations

from pml_gateway.upstreams.dialogue.question_probe import ServerObservations

LOOK = ("tools/call", "look")


def test_another_version_of_the_server_is_seen_anew() -> None:
    observed = ServerObservations()
    observed.meet("server 1")
    running = observed.calm
    observed.answered_calmly(LOOK, running)
    observed.note_unspoken("2026-07-28")
    observed.meet("server 1")
    assert observed.calm == {LOOK}
    assert observed.speaks_not("2026-07-28")
    assert not observed.speaks_not("2025-11-25")
    observed.meet("server 2")
    # A request that began before adds nothing to what is known of this one.
    observed.answered_calmly(("tools/call", "late"), running)
    assert observed.calm == set()
    assert not observed.speaks_not("2026-07-28")
