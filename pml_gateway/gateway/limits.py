"""Limits on calls: those that apply to a call, and its refusal where one of them is used up.

A call is what a server answers: a tool, a prompt or a resource, wherever it is made. Limits of a client count for each
client, those of a server and of its tools for all clients together.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import anyio
from cachetools import LRUCache

from pml_gateway.config.limits import Limits
from pml_gateway.errors import RateLimitedError
from pml_gateway.gateway.call import TOOL_CALL, Attempt
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.gateway.request import RequestScope
from pml_gateway.json_text.pieces import exceeds, measure
from pml_gateway.policy.principal import PrincipalKind
from pml_gateway.quotas import FairPlaces
from pml_gateway.results.encoding import tokens_of_json
from pml_gateway.storage.counters import Allowance, Counters, MemoryCounters
from pml_gateway.storage.pending import fingerprint
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

NOT_COUNTED = frozenset({"completion/complete", "resources/subscribe"})
"""Methods that are not counted: clients send them while their users type or look, and they return no content."""

WAIT_SECONDS = 10.0
"""Maximum seconds that a call waits for others of its client, server or tool to end."""

MAX_WAITING = 64
"""Calls that wait for one limit, as many as for a server by default; more are refused at once."""

REFUSALS_APART = 1.0
HELD_SECONDS = 0.5
"""A refusal that follows another one within a second is held for a quarter to half a second: a client that calls again
at once would have the gateway spend most of its time on refusals. Those of one request are held once."""

MAX_REFUSED = 2_000
"""Clients whose last refusal is remembered."""

RETRY_SECONDS = 1.0
"""When to come back if too many calls run: nobody knows when one of them ends."""

COUNTED_CHARACTERS = 8_000
CHARACTERS_PER_TOKEN = 4
"""Tokens of answers up to so many characters are counted, in less than a millisecond; others are estimated."""

MAX_MEASURED = 1_000_000
"""Characters of an answer that are measured, in 20 ms at most."""


class LimitKind(StrEnum):
    """The kinds of limits, by their keys in the configuration."""

    MINUTE = "calls_per_minute"
    DAY = "calls_per_day"
    AT_ONCE = "calls_at_once"
    TOKENS = "answer_tokens_per_hour"
    SAME_CALL = "same_call"


@dataclass(frozen=True, slots=True)
class AppliedLimit:
    """One limit of a call: its key in the configuration, its value, and whom it counts for."""

    setting: str
    kind: LimitKind
    subject: tuple[str, ...]
    most: int
    seconds: float = 0

    def refusal(self, retry_after: float) -> CallRefusal:
        """Return the refusal of a call for which there is room again after so many seconds."""
        seconds = max(math.ceil(retry_after), 1)
        hint = f"try again in {counted(seconds, 'second')}; the owner of the gateway sets {self.setting}"
        match self.kind:
            case LimitKind.MINUTE:
                message = f"the limit of {counted(self.most, 'call')} a minute is reached"
            case LimitKind.DAY:
                message = f"the limit of {counted(self.most, 'call')} a day is reached"
            case LimitKind.AT_ONCE:
                message = f"the limit of {counted(self.most, 'call')} at the same time is reached"
            case LimitKind.TOKENS:
                message = f"the limit of {counted(self.most, 'token')} of answers an hour is reached"
            case LimitKind.SAME_CALL:
                times = f"{counted(self.most, 'time')} within {self.seconds:g} seconds"
                message = f"the same call with the same arguments was made {times}, which is the limit"
                hint = f"use the answer that you have, change the arguments, or {hint}"
            case _ as unreachable:
                assert_never(unreachable)
        details = {"limit": self.kind.value, "value": self.most, "retry_after": seconds, "executed": "no"}
        return CallRefusal(RateLimitedError(message, hint=hint, details=details), self.setting)


class CallLimits:
    """Decides about calls by their limits, for all gateways of one process."""

    def __init__(self, counters: Counters | None = None) -> None:
        self._counters = counters or MemoryCounters()
        self._places: dict[AppliedLimit, FairPlaces] = {}
        self._refused: LRUCache[str, tuple[float, int]] = LRUCache(MAX_REFUSED)

    async def __call__(self, attempt: Attempt) -> Decision:
        """Refuse a call for which a limit has no room; count it otherwise."""
        refusal = await self._decide(attempt)
        if refusal is not None:
            await self._hold(attempt.context.scope)
        return refusal

    async def _hold(self, scope: RequestScope) -> None:
        """Hold a refusal back if its client was refused a moment ago."""
        now, quota_key = time.monotonic(), scope.client.quota_key
        before, request = self._refused.get(quota_key, (-math.inf, scope.number))
        self._refused[quota_key] = now, scope.number
        if now - before < REFUSALS_APART and request != scope.number:
            scope.end_turn()
            # Refusals that were held together would be sent together.
            await anyio.sleep(HELD_SECONDS * random.uniform(0.5, 1))

    async def _decide(self, attempt: Attempt) -> Decision:
        limits = list(_limits_of(attempt))
        if not limits:
            return None
        for limit in limits:
            if limit.kind is LimitKind.AT_ONCE and not await self._take_place(limit, attempt):
                return limit.refusal(RETRY_SECONDS)
        allowed = {_allowance(limit, attempt): limit for limit in limits if limit.kind is not LimitKind.AT_ONCE}
        used_up = await self._counters.take(tuple(allowed))
        if used_up is not None:
            return allowed[used_up.allowance].refusal(used_up.retry_after)
        of_tokens = [each for each, limit in allowed.items() if limit.kind is LimitKind.TOKENS]
        if of_tokens:
            attempt.held.push_async_callback(self._count_tokens, attempt, of_tokens)
        return None

    async def _take_place(self, limit: AppliedLimit, attempt: Attempt) -> bool:
        """Wait until fewer calls run, and count one more until it ends."""
        quota_key = attempt.context.scope.client.quota_key
        places = self._places.setdefault(limit, FairPlaces(limit.most))
        is_full = not places.has_one_for(quota_key) and len(places.waiting) >= MAX_WAITING
        if is_full and not places.make_room(quota_key):
            return False
        has_place = places.has_one_for(quota_key)
        if has_place:
            places.take(quota_key)
        else:
            with anyio.move_on_after(WAIT_SECONDS):
                has_place = await places.wait(quota_key)
        if has_place:
            attempt.held.callback(self._give_back, limit, places, quota_key)
        return has_place

    def _give_back(self, limit: AppliedLimit, places: FairPlaces, quota_key: str) -> None:
        places.give_back(quota_key)
        if places.free == limit.most and not places.waiting:
            self._places.pop(limit, None)

    async def _count_tokens(self, attempt: Attempt, allowances: Iterable[Allowance]) -> None:
        tokens = answer_tokens(attempt.result)
        for allowance in allowances:
            await self._counters.add(allowance, tokens)


def answer_tokens(result: JsonObject | None) -> int:
    """Return the tokens that a model reads of an answer: of images and audio none, and of two forms those of one."""
    if result is None:
        return 0
    blocks = result.get("content") or result.get("messages") or result.get("contents")
    read = [block for block in blocks if "data" not in block] if isinstance(blocks, list) else result
    if not exceeds(read, COUNTED_CHARACTERS):
        return tokens_of_json(read)
    return measure(read, MAX_MEASURED) // CHARACTERS_PER_TOKEN


def _limits_of(attempt: Attempt) -> Iterator[AppliedLimit]:
    """Yield the limits of a call. For its client, tokens count only if it is no part of another call."""
    context = attempt.context
    settings, client = context.state.settings, context.scope.client
    if client.kind is PrincipalKind.OWNER:
        return
    is_call = attempt.method not in NOT_COUNTED
    if attempt.method == TOOL_CALL:
        is_call = context.calls.server(attempt.server) is None
    places: list[tuple[str, Limits]] = [("limits", settings.limits)]
    if client.kind is PrincipalKind.CLIENT and (entry := settings.clients.get(client.shown)) is not None:
        places.append((f"clients.{client.shown}.limits", entry.limits))
    roles = {name: role for name in client.roles if (role := settings.roles.get(name)) is not None}
    places += [(f"roles.{name}.limits", role.limits) for name, role in roles.items()]
    for limit in strictest(places, ("client", client.quota_key)):
        if attempt.is_outermost if limit.kind is LimitKind.TOKENS else is_call:
            yield limit
    server = settings.servers.get(attempt.server) if is_call else None
    if server is None:
        return
    key = f"servers.{attempt.server}"
    yield from strictest([(f"{key}.limits", server.limits)], ("server", attempt.server))
    if attempt.tool is not None and (tool := server.tools.get(attempt.tool.name)) is not None:
        subject = ("tool", attempt.server, attempt.tool.name)
        yield from strictest([(f"{key}.tools.{attempt.tool.name}.limits", tool.limits)], subject)


def strictest(places: Iterable[tuple[str, Limits]], subject: tuple[str, ...]) -> Iterable[AppliedLimit]:
    """Return the limits of one subject: of each kind the lowest, and loop guards with different times."""
    found: dict[tuple[LimitKind, float], AppliedLimit] = {}
    for setting, limits in places:
        for kind, most, seconds in _configured(limits):
            known = found.get((kind, seconds))
            if known is None or most < known.most:
                found[kind, seconds] = AppliedLimit(f"{setting}.{kind}", kind, subject, most, seconds)
    return found.values()


def _configured(limits: Limits) -> Iterator[tuple[LimitKind, int, float]]:
    """Yield kind, value and seconds of the limits that are set."""
    if limits.calls_per_minute is not None:
        yield LimitKind.MINUTE, limits.calls_per_minute, 60
    if limits.calls_per_day is not None:
        yield LimitKind.DAY, limits.calls_per_day, 86_400
    if limits.calls_at_once is not None:
        yield LimitKind.AT_ONCE, limits.calls_at_once, 0
    if limits.answer_tokens_per_hour is not None:
        yield LimitKind.TOKENS, limits.answer_tokens_per_hour, 3600
    if limits.same_call.times is not None:
        yield LimitKind.SAME_CALL, limits.same_call.times, limits.same_call.seconds


def _allowance(limit: AppliedLimit, attempt: Attempt) -> Allowance:
    quota_key, key = attempt.context.scope.client.quota_key, (*limit.subject, limit.kind)
    if limit.kind is LimitKind.SAME_CALL:
        options, given = attempt.context.options, attempt.sent_arguments
        if options.input_responses or options.request_state:
            # A client that brings the answers which a call asked for does not repeat that call.
            given = {"given": given, "answers": options.input_responses, "state": options.request_state}
        same = fingerprint(f"{attempt.method} {attempt.server} {attempt.target}", given)
        key = (*key, f"{limit.seconds:g}", quota_key, same)
    amount = 0 if limit.kind is LimitKind.TOKENS else 1
    return Allowance(key, limit.most, limit.seconds, quota_key, amount)
