"""Requests for approval: the calls that the gateway's owner is asked about, and the calls that an answer lets pass."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.types import JsonObject

MAX_GUESSES = 5
"""Wrong passphrases of one approval; each takes a tenth of a second to check."""


SESSION_SECONDS = 8 * 3600.0
"""Maximum seconds that an approval of a tool for a session lasts: a day's work."""


class ApprovalScope(StrEnum):
    """The calls that an approval is for."""

    CALL = "call"
    """The calls that were asked about, each once."""
    ARGUMENTS = "arguments"
    """Calls of the same tool with the same arguments."""
    TOOL = "tool"
    """Calls of the same tool by the same client."""


class ApprovalState(StrEnum):
    """The state of a request for approval."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call as an approval is bound to it, without its arguments.

    `tool_key` stands for the client and the tool as it is defined now, `arguments_key` also for the exact arguments,
    and `key` also for the request that the call is part of.
    """

    client: str
    quota_key: str
    tool: str
    source: str
    rule: str
    tool_key: str
    arguments_key: str
    key: str


@dataclass(frozen=True, slots=True)
class AskedCall(BoundCall):
    """A call that needs an approval."""

    arguments: JsonObject


def asked_call(
    owner: tuple[str, str, str],
    client: str,
    tool: str,
    source: str,
    definition: str,
    arguments: JsonObject,
    *,
    rule: str,
    within: str,
) -> AskedCall:
    """Return a call with what an approval is bound to.

    Args:
        owner: the id and the quota key of the client, and its folder.
        client: the client as its owner knows it.
        tool: the qualified name of the tool.
        source: the server and its own name of the tool.
        definition: a digest of everything that the tool is.
        arguments: as they are sent.
        rule: the rule that asks.
        within: the request of several calls that it is part of; empty for a single call.
    """
    tool_key = digest_of([*owner, source, definition])
    arguments_key = digest_of([tool_key, arguments])
    key = digest_of([arguments_key, within])
    return AskedCall(client, owner[1], tool, source, rule, tool_key, arguments_key, key, arguments)


def digest_of(value: object) -> str:
    """Return the digest of a JSON value: 1, 1.0, true and "1" differ, and so do two spellings of a letter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def counted_keys(calls: Iterable[BoundCall]) -> dict[str, int]:
    """Return how often each call is among some calls, by their keys."""
    return dict(Counter(each.key for each in calls))


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Calls of one client that its owner is asked about at once, and the answer."""

    id: str
    calls: tuple[BoundCall, ...]
    within: str
    settings: ApprovalSettings
    asked_at: float
    expires_at: float
    left: Mapping[str, int]
    """Calls that were asked about, then those of them that were not made yet, by their keys."""
    state: ApprovalState = ApprovalState.PENDING
    scope: ApprovalScope = ApprovalScope.CALL
    uses: int = 0
    guesses: int = 0
    held: Mapping[str, float] = field(default_factory=dict)
    """Replicas that hold calls until it is answered, each until when; further calls have to be sent again."""
    revision: int = 0
    """Number of changes before, for stores that could go back to an older one."""

    def admits(self, call: BoundCall) -> bool:
        """Return True if a call is among those that are approved."""
        if self.state is not ApprovalState.APPROVED:
            return False
        match self.scope:
            case ApprovalScope.CALL:
                return self.left.get(call.key, 0) > 0
            case ApprovalScope.ARGUMENTS:
                return any(each.arguments_key == call.arguments_key for each in self.calls)
            case ApprovalScope.TOOL:
                return any(each.tool_key == call.tool_key for each in self.calls)

    @property
    def answered_at(self) -> float:
        """Return when it was answered, which set its end."""
        return self.expires_at - self.lasting(self.scope, is_approved=self.state is ApprovalState.APPROVED)

    def lasting(self, scope: ApprovalScope, *, is_approved: bool) -> float:
        """Return for how many seconds an answer holds."""
        return SESSION_SECONDS if is_approved and scope is ApprovalScope.TOOL else 60 * self.settings.minutes

    def is_about(self, call: BoundCall) -> bool:
        """Return True if it asked about exactly this call."""
        return any(each.key == call.key for each in self.calls)

    def used(self, call: BoundCall) -> ApprovalRequest:
        """Return it after the use of a call that it admits."""
        left = self.left
        if self.scope is ApprovalScope.CALL:
            left = {**left, call.key: left[call.key] - 1}
        return replace(self, uses=self.uses + 1, left=left)

    def given_back(self, call: BoundCall) -> ApprovalRequest:
        """Return it after a use is taken back, of a call that was not sent after all."""
        left, asked = self.left, sum(each.key == call.key for each in self.calls)
        if self.state is ApprovalState.APPROVED and self.scope is ApprovalScope.CALL:
            # It may have been answered anew meanwhile.
            left = {**left, call.key: min(left.get(call.key, 0) + 1, asked)}
        return replace(self, uses=max(self.uses - 1, 0), left=left)

    def answered(self, scope: ApprovalScope, expires_at: float, *, is_approved: bool) -> ApprovalRequest:
        """Return it with an answer; the same one again, as of a request that was sent twice, allows no call more."""
        if not is_approved:
            return replace(self, state=ApprovalState.DENIED, scope=scope, expires_at=expires_at, left={})
        if self.state is ApprovalState.APPROVED and scope is self.scope is ApprovalScope.CALL:
            return replace(self, guesses=0)
        left = counted_keys(self.calls)
        return replace(self, state=ApprovalState.APPROVED, scope=scope, expires_at=expires_at, left=left, guesses=0)

    def guessed(self) -> ApprovalRequest:
        """Return it with one more passphrase to check, or denied if there were too many wrong ones."""
        guesses = self.guesses + 1
        if guesses <= MAX_GUESSES:
            return replace(self, guesses=guesses)
        return replace(self, guesses=guesses, state=ApprovalState.DENIED, left={})

    def held_until(self, holder: str, until: float | None) -> ApprovalRequest:
        """Return it as one for which a replica holds calls until a moment, or no longer."""
        others = {each: end for each, end in self.held.items() if each != holder}
        return replace(self, held=others if until is None else {**others, holder: until})

    def as_json(self, now: float, arguments: Sequence[JsonObject] | None = None) -> JsonObject:
        """Return it for its owner at a moment, with the arguments of its calls if they are given."""
        is_pending = self.state is ApprovalState.PENDING
        return {
            "id": self.id,
            "state": self.state.value,
            "client": self.calls[0].client,
            "part_of": self.within or None,
            "scope": self.scope.value if self.state is ApprovalState.APPROVED else None,
            "uses": self.uses,
            "asked_at": self.asked_at,
            "seconds_left": max(round(self.expires_at - now), 0),
            "is_held": is_pending and any(until > now for until in self.held.values()),
            "needs_passphrase": self.settings.secret is not None,
            "calls": [
                {"tool": each.tool, "rule": each.rule, **({} if arguments is None else {"arguments": arguments[at]})}
                for at, each in enumerate(self.calls)
            ],
        }
