"""The stream of events: who is told what, and what a subscriber's fault costs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pml_gateway.gateway.call import Access
from pml_gateway.telemetry.events import Events, IndexSearched, RequestEnded
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio


def test_subscribers_are_told_of_their_own_events_in_their_order() -> None:
    events, told = Events(), list[object]()
    events.subscribe(IndexSearched, lambda event: told.append(("first", event)))
    events.subscribe(IndexSearched, lambda event: told.append(("second", event)))
    events.publish(IndexSearched(0.5))
    events.publish(RequestEnded("ping", "local", "OK", 0.1))
    assert told == [("first", IndexSearched(0.5)), ("second", IndexSearched(0.5))]
    assert events.reach(IndexSearched)
    assert not events.reach(RequestEnded)


async def test_a_failing_subscriber_breaks_no_call_and_its_text_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Access) -> None:
        raise ValueError(f"s3cret {event.attempt.arguments}")

    codes: list[str] = []
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served:
        served.gateway.events.subscribe(Access, broken)
        served.gateway.events.subscribe(Access, lambda event: codes.append(event.code))
        with caplog.at_level(logging.INFO, logger="pml_gateway"):
            result = await served.call("up__t")
    assert not result.get("isError")
    assert codes == ["OK"]
    assert "ValueError in a subscriber of Access" in caplog.text
    assert "s3cret" not in caplog.text
