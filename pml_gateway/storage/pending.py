"""Table, in memory, of what waits for a further request of its client: suspended runs, open questions, and tasks.

Each entry belongs to one owner. Runs and questions also belong to one request, which has to be sent again unchanged.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pml_gateway.errors import ErrorCode, ToolCallError
from pml_gateway.quotas import Holdings
from pml_gateway.types import JsonObject

MAX_SECONDS = 900.0
"""Maximum time in seconds that anything waits: a person has to answer, and the client asks again in between."""

MAX_PENDING = 512
"""Maximum number of entries of a table: each may hold a request of its server open, or the results of a plan."""

IN_PROCESS = "pml-held:"
"""Start of the state of what waits in the memory of one process, and can be answered nowhere else; servers, which make
states of their own, are not expected to begin one with it."""

Payload = TypeVar("Payload")


class PendingNotFoundError(ToolCallError):
    """Nothing waits under this state for this request; unknown, foreign and expired states look the same."""

    code = ErrorCode.NOT_FOUND


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Payload]):
    request: tuple[str, str]
    payload: Payload
    expires_at: float


class PendingTable(Generic[Payload]):
    """Entries by the secret state that their owner sends to continue, each usable once and for a limited time."""

    def __init__(
        self,
        name: str,
        seconds: float = MAX_SECONDS,
        *,
        give_up: Callable[[Payload], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` says in errors what waits; `give_up` is called for what is dropped before it goes on."""
        self._name = name
        self._seconds = seconds
        self._give_up = give_up
        self._clock = clock
        self._entries: dict[str, _Entry[Payload]] = {}
        self._held: Holdings[str] = Holdings()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Payload]:
        return (entry.payload for entry in self._entries.values())

    def __contains__(self, state: str) -> bool:
        """Return True if a payload is kept under this state, whoever its owner is."""
        return state in self._entries

    def add(
        self,
        payload: Payload,
        *,
        owner: str,
        quota_key: str,
        fingerprint: str = "",
        seconds: float | None = None,
        state: str = "",
    ) -> str:
        """Keep a payload and return its state; without room, drop the oldest of the quota that holds most.

        By default, the state is a new secret, and the payload waits for as long as the table says.
        """
        self.sweep()
        state = state or f"{IN_PROCESS}{new_state()}"
        expires_at = self._clock() + (self._seconds if seconds is None else seconds)
        self._entries[state] = _Entry((owner, fingerprint), payload, expires_at)
        self._held.note(state, quota_key)
        while len(self._held) > MAX_PENDING and (oldest := self._held.first_to_go()) is not None:
            self._give_up(self._remove(oldest))
        return state

    def take(self, state: str, *, owner: str, fingerprint: str) -> Payload:
        """Remove and return a payload.

        Raises:
            PendingNotFoundError: nothing of this owner waits under this state for this request.
        """
        entry, request = self._entries.get(state), (owner, fingerprint)
        if entry is None or entry.request != request or entry.expires_at <= self._clock():
            raise not_waiting(self._name, self._seconds)
        return self._remove(state)

    def find(self, state: str, *, owner: str) -> Payload | None:
        """Return a payload that stays; None if nothing of this owner is kept under this state."""
        entry = self._entries.get(state)
        if entry is None or entry.request[0] != owner or entry.expires_at <= self._clock():
            return None
        self._held.used(state)
        return entry.payload

    def of(self, owner: str) -> list[tuple[str, Payload]]:
        """Return what is kept for an owner, with the states, the oldest first."""
        now = self._clock()
        return [
            (state, entry.payload)
            for state, entry in self._entries.items()
            if entry.request[0] == owner and entry.expires_at > now
        ]

    def sweep(self) -> None:
        """Give up each payload whose time is over."""
        now = self._clock()
        for old in [old for old, entry in self._entries.items() if entry.expires_at <= now]:
            self._give_up(self._remove(old))

    def drop(self, is_over: Callable[[Payload], bool]) -> None:
        """Give up each payload for which `is_over` returns True."""
        for state in [state for state, entry in self._entries.items() if is_over(entry.payload)]:
            self._give_up(self._remove(state))

    def _remove(self, state: str) -> Payload:
        self._held.forget(state)
        return self._entries.pop(state).payload


def new_state() -> str:
    """Return a new secret state."""
    return secrets.token_urlsafe(24)


def not_waiting(name: str, seconds: float) -> PendingNotFoundError:
    """Return the error for a state under which nothing waits; `name` says what would, for so many seconds."""
    return PendingNotFoundError(
        f"no {name} of this request waits under this requestState",
        hint=f"send the same request as before, within {seconds:g} s and once; else start it anew",
    )


def waits_in_process(state: object) -> bool:
    """Return True for the state of what waits in the memory of one process, this one or another."""
    return isinstance(state, str) and state.startswith(IN_PROCESS)


def fingerprint(target: str, arguments: JsonObject) -> str:
    """Return the digest of a request: its target and its arguments."""
    text = json.dumps([target, arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
