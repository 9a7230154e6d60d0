"""Calls that fail in a row hold calls back; one that is answered lets them through again; reads are tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.client.client import Client

from pml_gateway.config.settings import BreakerSettings
from pml_gateway.errors import ErrorCode, GatewayError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.quotas import OWN
from pml_gateway.reports.status import gateway_status
from pml_gateway.upstreams.breaker import Breaker, BreakerState
from pml_gateway.upstreams.concurrency import CallLimit
from pml_gateway.upstreams.faults import repeated
from tests.support.asking import Person, asking
from tests.support.local import machine
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import LIMIT

pytestmark = pytest.mark.anyio


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = result["structuredContent"]["error"]
    return error


def breaker_of(served: Serving, upstream_id: str = "up") -> dict[str, Any]:
    rows = gateway_status(served.gateway)["upstreams"]
    report: dict[str, Any] = next(row["breaker"] for row in rows if row["server"] == upstream_id)
    return report


class Moody:
    """A tool that hangs while it is told to."""

    def __init__(self) -> None:
        self.hangs = True

    async def __call__(self, _ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        if self.hangs:
            await anyio.sleep_forever()
        return text_result("alive")


class Trial:
    """A breaker with a clock of its own."""

    def __init__(self, **settings: float) -> None:
        self.now = 100.0
        self.opened = 0
        given = BreakerSettings.model_validate({"failures": 2, "pause": 30, **settings})
        self.breaker = Breaker("up", given, on_open=self._on_open, clock=lambda: self.now)

    def _on_open(self) -> None:
        self.opened += 1

    def fail(self, quota_key: str = OWN) -> None:
        """One call that ends without an answer."""
        with pytest.raises(UpstreamTimeoutError), self.breaker.call(quota_key, impatient=False) as ticket:
            ticket.sent = True
            raise UpstreamTimeoutError("up: no answer")

    def answer(self, quota_key: str = OWN) -> None:
        """One call that is answered."""
        with self.breaker.call(quota_key, impatient=False):
            pass


def test_failures_in_a_row_open_it_and_an_answered_probe_closes_it() -> None:
    trial = Trial()
    trial.fail()
    trial.answer()
    trial.fail()
    assert trial.breaker.report() == {"state": "closed", "failures": 1}, "an answer in between starts the count anew"
    trial.fail()
    assert (trial.breaker.report()["state"], trial.opened) == ("open", 1)
    trial.now += 10
    with pytest.raises(UpstreamUnavailableError) as refused:
        trial.answer()
    assert refused.value.details == {"executed": "no", "retry_after_seconds": 20.0}
    trial.now += 20
    assert trial.breaker.report()["state"] == "half_open"
    trial.answer()
    assert trial.breaker.report() == {"state": "closed", "failures": 0}


def test_one_call_at_a_time_probes_and_its_failure_begins_another_pause() -> None:
    trial = Trial(failures=1)
    trial.fail()
    trial.now += 30
    with pytest.raises(UpstreamTimeoutError), trial.breaker.call(impatient=False) as ticket:
        with pytest.raises(UpstreamUnavailableError):
            trial.answer()
        ticket.sent = True
        raise UpstreamTimeoutError("up: no answer")
    assert trial.breaker.report() == {"state": "open", "failures": 1, "retry_after_seconds": 30.0}


def test_a_probe_that_its_client_cancels_leaves_the_next_call_to_probe() -> None:
    trial = Trial(failures=1)
    trial.fail()
    trial.now += 30
    with pytest.raises(KeyboardInterrupt), trial.breaker.call(impatient=False):
        raise KeyboardInterrupt
    trial.answer()
    assert trial.breaker.state is BreakerState.CLOSED


def test_calls_from_before_the_pause_decide_nothing() -> None:
    trial = Trial(failures=1)
    with trial.breaker.call(impatient=False):
        trial.fail()
    assert trial.breaker.state is BreakerState.OPEN


def test_a_breaker_of_zero_failures_never_opens() -> None:
    trial = Trial(failures=0)
    for _ in range(50):
        trial.fail()
    assert trial.breaker.state is BreakerState.CLOSED


def test_an_answer_to_another_client_lets_calls_through_again() -> None:
    trial = Trial()
    trial.fail("a")
    trial.fail("a")
    with pytest.raises(UpstreamUnavailableError):
        trial.answer("a")
    trial.answer("b")
    assert trial.breaker.report() == {"state": "closed", "failures": 0}
    trial.answer("a")


def test_once_the_calls_of_another_client_fail_as_well_everybodys_are_refused() -> None:
    trial = Trial()
    trial.fail("a")
    trial.fail("a")
    trial.now += 10
    trial.fail("b")
    assert trial.breaker.retry_after == 30, "the pause begins anew"
    for quota_key in ("a", "b", "c"):
        with pytest.raises(UpstreamUnavailableError):
            trial.answer(quota_key)
    trial.now += 30
    trial.answer("c")
    assert trial.breaker.state is BreakerState.CLOSED


def test_a_client_that_is_spared_makes_calls_side_by_side_which_decide_nothing_after_their_pause() -> None:
    trial = Trial(failures=1)
    trial.fail("a")
    with trial.breaker.call("b", impatient=False):
        trial.answer("b")
        trial.now += 1
        trial.fail("a")
    assert trial.breaker.state is BreakerState.OPEN


def test_the_crash_that_ends_the_calls_of_two_clients_counts_for_one() -> None:
    trial, crash = Trial(failures=1), object()
    with pytest.raises(UpstreamUnavailableError), trial.breaker.call("b", impatient=False) as beside:
        with pytest.raises(UpstreamUnavailableError), trial.breaker.call("a", impatient=False) as ticket:
            ticket.incident = crash
            raise UpstreamUnavailableError("up: gone")
        beside.incident = crash
        raise UpstreamUnavailableError("up: gone")
    trial.answer("b")


async def test_the_timeouts_of_one_client_have_nobody_elses_calls_refused(tmp_path: Path) -> None:
    async def hang_if_told(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("hangs"):
            await anyio.sleep_forever()
        return text_result("alive")

    upstream = ScriptedServer([tool("t")], hang_if_told)
    limits = {"call_timeout": 2, "breaker": {"failures": 2}}
    settings = settings_for({"up": upstream}, gateway={"tools_exposure": "full_proxy"}, upstreams=limits)
    async with (
        machine(tmp_path, {"up": upstream}, settings) as served,
        served.unable("a") as first,
        served.unable("b") as second,
    ):
        assert await served.gateway.refresh(LIMIT)

        async def said(client: Client, **arguments: Any) -> str:
            result = await client.call_tool("up__t", arguments)
            return str(result.content[0].text)  # type: ignore[union-attr]

        for _ in range(2):
            assert ErrorCode.TIMEOUT in await said(first, hangs=True)
        assert ErrorCode.UPSTREAM_UNAVAILABLE in await said(first)
        assert await said(second) == "alive"
        assert await said(first) == "alive"


async def test_calls_that_are_never_answered_are_refused_while_others_work_on(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("t")], Moody()), "ok": ScriptedServer([tool("t")])}
    limits = {"call_timeout": 2, "breaker": {"failures": 2}}
    async with serving(tmp_path, upstreams, settings_for(upstreams, upstreams=limits)) as served:
        first = error_of(await served.call("up__t"))
        assert (first["code"], first["details"]["executed"]) == (ErrorCode.TIMEOUT, "unknown")
        assert breaker_of(served) == {"state": "closed", "failures": 1}
        await served.call("up__t")
        refused = error_of(await served.call("up__t"))
        assert (refused["code"], refused["retryable"]) == (ErrorCode.UPSTREAM_UNAVAILABLE, True)
        assert refused["details"]["executed"] == "no"
        assert 0 < refused["details"]["retry_after_seconds"] <= 30
        assert breaker_of(served)["state"] == "open"
        assert len(upstreams["up"].calls) == 2, "refused calls are not sent"
        assert (await served.call("ok__t"))["content"]


async def test_after_the_pause_calls_reach_an_upstream_that_answers_again(tmp_path: Path) -> None:
    mood = Moody()
    upstreams = {"up": ScriptedServer([tool("t")], mood)}
    limits = {"call_timeout": 0.2, "breaker": {"failures": 1, "pause": 0.2}}
    async with serving(tmp_path, upstreams, settings_for(upstreams, upstreams=limits)) as served:
        await served.call("up__t")
        mood.hangs = False
        answer = await served.call("up__t")
        with anyio.fail_after(30):
            while answer.get("isError"):
                answer = await served.call("up__t")
        assert answer["content"][0]["text"] == "alive"
        assert breaker_of(served) == {"state": "closed", "failures": 0}


async def test_a_probe_that_asks_a_person_keeps_nobody_waiting(tmp_path: Path) -> None:
    fake, ada, moody = asking(), Person("ada"), Moody()
    act, ada.answers = fake.handler, anyio.Event()
    assert act is not None

    async def after_the_mood(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return await (act if not moody.hangs else moody)(ctx, call)

    fake.handler = after_the_mood
    limits = {"call_timeout": 3, "breaker": {"failures": 1, "pause": 0.1}}
    async with (
        serving(tmp_path, {"up": fake}, settings_for({"up": fake}, upstreams=limits)) as served,
        ada.client(served.url, modern=False) as client,
        anyio.create_task_group() as tasks,
    ):
        assert error_of(await served.call("up__plain"))["code"] == ErrorCode.TIMEOUT
        moody.hangs = False
        results: list[Any] = []

        async def ask() -> None:
            results.append(await client.call_tool("up__ask", {"text": "who"}))

        with anyio.fail_after(30):
            while breaker_of(served)["state"] == BreakerState.OPEN:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(ask)
            while not ada.asked:
                await anyio.lowlevel.checkpoint()
        beside = await served.call("up__plain")
        ada.answers.set()
    assert beside["content"][0]["text"] == "plain "
    assert results[0].content[0].text == "ada: who"


async def test_answers_of_whatever_kind_and_calls_given_little_time_open_nothing(tmp_path: Path) -> None:
    async def fail(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("slow"):
            await anyio.sleep_forever()
        return {**text_result("no"), "isError": True}

    upstreams = {"up": ScriptedServer([tool("t")], fail)}
    limits = {"breaker": {"failures": 1}}
    async with serving(tmp_path, upstreams, settings_for(upstreams, upstreams=limits)) as served:
        for _ in range(3):
            assert (await served.call("up__t"))["isError"] is True
        steps = [{"id": "slow", "tool": "up__t", "arguments": {"slow": True}, "timeout": 0.1}]
        await served.call("execute_workflow", {"steps": steps})
        assert breaker_of(served) == {"state": "closed", "failures": 0}


async def test_calls_that_one_crash_ends_count_as_one_failure(tmp_path: Path) -> None:
    started: list[anyio.Event] = [anyio.Event() for _ in range(6)]

    async def hang(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if (number := call["arguments"].get("number")) is not None:
            started[number].set()
            await anyio.sleep_forever()
        return text_result("alive")

    upstreams = {"up": ScriptedServer([tool("t")], hang)}
    async with serving(tmp_path, upstreams) as served:
        results: list[dict[str, Any]] = []

        async def call(number: int) -> None:
            results.append(error_of(await served.call("up__t", {"number": number})))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(call, number)
                for event in started:
                    await event.wait()
                upstreams["up"].kill()
        assert {error["details"]["executed"] for error in results} == {"unknown"}
        assert breaker_of(served)["failures"] == 1
        assert (await served.call("up__t"))["content"][0]["text"] == "alive"


@pytest.mark.parametrize(("hint", "reached"), [("readOnlyHint", 2), ("idempotentHint", 2), ("destructiveHint", 1)])
async def test_only_what_is_declared_repeatable_is_sent_again_after_a_crash(
    tmp_path: Path, hint: str, reached: int
) -> None:
    async def crash_once(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        if len(upstream.calls) == 1:
            upstream.kill()
            await anyio.sleep_forever()
        return text_result("second")

    upstream = ScriptedServer([tool("t", annotations={hint: True})], crash_once)
    async with serving(tmp_path, {"up": upstream}) as served:
        result = await served.call("up__t")
        assert len(upstream.calls) == reached
        if reached == 2:
            assert result["content"][0]["text"] == "second"
        else:
            assert error_of(result)["details"]["executed"] == "unknown"


@pytest.mark.parametrize("last", [UpstreamUnavailableError, UpstreamTimeoutError])
async def test_a_repeated_call_that_was_not_sent_at_last_may_still_have_been_executed_before(
    last: type[GatewayError],
) -> None:
    failures: list[GatewayError] = [
        last("not sent", details={"executed": "no"}),
        UpstreamUnavailableError("sent", details={"executed": "unknown"}),
    ]

    async def attempt() -> None:
        raise failures.pop() if len(failures) > 1 else failures[0]

    with pytest.raises(last) as failed:
        await repeated(attempt, anyio.current_time() + 60)
    assert failed.value.details == {"executed": "unknown"}


async def test_a_repeatable_call_that_times_out_is_not_sent_again(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("t", annotations={"readOnlyHint": True})], Moody())
    settings = settings_for({"up": upstream}, upstreams={"call_timeout": 1})
    async with serving(tmp_path, {"up": upstream}, settings) as served:
        assert error_of(await served.call("up__t"))["code"] == ErrorCode.TIMEOUT
        assert len(upstream.calls) == 1


async def test_a_call_that_waits_for_others_until_its_deadline_was_not_sent() -> None:
    slots = CallLimit("up", 1, 1)
    async with slots.taken(anyio.current_time() + 60):
        with pytest.raises(UpstreamTimeoutError) as refused:
            async with slots.taken(anyio.current_time()):
                pytest.fail("there is one place only")
    assert refused.value.details == {"executed": "no"}
    assert slots.is_unused


async def test_a_call_whose_time_was_over_when_its_server_was_ready_blames_no_other_calls() -> None:
    slots = CallLimit("up", 1, 1)
    with pytest.raises(UpstreamTimeoutError) as refused:
        async with slots.taken(anyio.current_time()):
            pytest.fail("there is no time left")
    assert "others" not in refused.value.message
    assert "servers.up.call_timeout" in refused.value.hint
    assert refused.value.details == {"executed": "no"}
