"""Pins: the definitions that were accepted, those held back, and those that the owner rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pml_gateway.trust.identity import Identity, Key
from pml_gateway.trust.verdict import Verdict
from pml_gateway.types import JsonObject

MAX_FORMS = 8
"""Accepted forms of one definition that are kept, those listed last: some servers write the date into every listing."""

MAX_HELD = 8
"""Forms of one definition that wait at the same time, the newest."""

MAX_REJECTED_TEXTS = 1_000
"""Texts that are recognised under another name or server; the oldest go first."""


class Acceptance(StrEnum):
    """Reason why a form was accepted."""

    NEW_SERVER = "new_server"
    """Its server was new, and `trust.new_servers` accepts those."""
    NO_ATTACK = "no_attack"
    POLICY = "policy"
    """`trust.changes` accepts every change."""
    OWNER = "owner"


class HoldReason(StrEnum):
    """Reason why a definition is held back."""

    CHANGED = "changed"
    NEW = "new"
    NEW_SERVER = "new_server"
    RETURNED = "returned"
    """It says what was rejected before, under this or another name, or at another server."""
    UNREADABLE = "unreadable"
    """It is nested too deep to be compared."""


@dataclass(frozen=True, slots=True)
class Form:
    """One accepted form of a definition; `verdict` is what the lint said, once it was asked."""

    definition: JsonObject
    digest: str
    how: Acceptance
    at: float
    verdict: Verdict | None = None

    @property
    def is_flagged(self) -> bool:
        """Return True if the lint warns of a form that the owner has not approved."""
        return self.how is not Acceptance.OWNER and self.verdict is not None and self.verdict.is_attack


@dataclass(frozen=True, slots=True)
class HeldForm:
    """A form that is held back, or was rejected; `at` says since when (Unix seconds).

    `is_text_only` says that it is no attack with the texts that were accepted before, and is served with those.
    """

    definition: JsonObject
    digest: str
    because: HoldReason
    at: float
    verdict: Verdict | None = None
    is_text_only: bool = False


@dataclass(frozen=True, slots=True)
class ServerPins:
    """The pins of one server, which is known by its id and by what it is."""

    server: str
    what: str
    accepted: Mapping[Key, tuple[Form, ...]] = field(default_factory=dict)
    held: Mapping[Key, tuple[HeldForm, ...]] = field(default_factory=dict)
    """Gateways that share the pins may each see a form of its own."""
    rejected: Mapping[Key, tuple[HeldForm, ...]] = field(default_factory=dict)

    def form(self, key: Key, digest: str) -> Form | None:
        """Return the accepted form of this hash."""
        return next((form for form in self.accepted.get(key, ()) if form.digest == digest), None)

    @property
    def flagged(self) -> list[Key]:
        """Return the definitions whose form listed last is flagged."""
        return [key for key, forms in self.accepted.items() if forms[-1].is_flagged]

    def latest(self, key: Key) -> Form | None:
        """Return the accepted form that was listed last."""
        forms = self.accepted.get(key, ())
        return forms[-1] if forms else None

    def waiting(self, key: Key, digest: str) -> HeldForm | None:
        """Return the form of this hash that is held back."""
        return next((held for held in self.held.get(key, ()) if held.digest == digest), None)

    def refusal(self, key: Key, digest: str) -> HeldForm | None:
        """Return the form of this hash that the owner rejected."""
        return next((each for each in self.rejected.get(key, ()) if each.digest == digest), None)

    def with_forms(self, forms: Iterable[tuple[Key, Form]]) -> ServerPins:
        """Return these pins with more accepted forms, which are held back and rejected no longer."""
        accepted, held, rejected = dict(self.accepted), dict(self.held), dict(self.rejected)
        for key, form in forms:
            others = [each for each in accepted.get(key, ()) if each.digest != form.digest]
            accepted[key] = (*others, form)[-MAX_FORMS:]
            for others_of in (held, rejected):
                if key in others_of:
                    others_of[key] = tuple(each for each in others_of[key] if each.digest != form.digest)
        return replace(self, accepted=accepted, held=_filled(held), rejected=_filled(rejected))

    def rejecting(self, key: Key, held: HeldForm) -> ServerPins:
        """Return these pins with a definition rejected, which is accepted or waits no longer."""
        was_accepted = self.form(key, held.digest) is not None
        # Who rejects what is served wants none of it; who rejects a change wants what was there before.
        accepted = {each: forms for each, forms in self.accepted.items() if each != key or not was_accepted}
        rejected = tuple(each for each in self.rejected.get(key, ()) if each.digest != held.digest)
        waiting = tuple(each for each in self.held.get(key, ()) if each.digest != held.digest)
        return replace(
            self,
            accepted=accepted,
            held=_filled({**self.held, key: waiting}),
            rejected={**self.rejected, key: (*rejected, held)},
        )


def _filled(kept: Mapping[Key, tuple[HeldForm, ...]]) -> dict[Key, tuple[HeldForm, ...]]:
    return {key: each for key, each in kept.items() if each}


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one configuration: by server id and what the server is, and the texts that its owner rejected."""

    servers: Mapping[tuple[str, str], ServerPins] = field(default_factory=dict)
    rejected_texts: tuple[str, ...] = ()

    def of(self, server: str, identity: Identity) -> ServerPins | None:
        """Return the pins of a server as it is configured."""
        return self.servers.get((server, identity.what))

    def having(self, pins: ServerPins) -> Pins:
        """Return these pins with those of one server."""
        key = (pins.server, pins.what)
        return self if self.servers.get(key) == pins else replace(self, servers={**self.servers, key: pins})

    def copied(self, server: str, to: str) -> Pins:
        """Return these pins with those of one server id under another as well."""
        copies = {(to, what): replace(each, server=to) for (own, what), each in self.servers.items() if own == server}
        return replace(self, servers={**self.servers, **copies}) if copies else self

    def without_server(self, server: str) -> Pins:
        """Return these pins without any of one server id; what was rejected of it stays rejected everywhere."""
        return replace(self, servers={key: each for key, each in self.servers.items() if key[0] != server})

    def with_rejected(self, texts: Iterable[str]) -> Pins:
        """Return these pins with more texts to recognise wherever they come back."""
        known = dict.fromkeys((*self.rejected_texts, *texts))
        return replace(self, rejected_texts=tuple(known)[-MAX_REJECTED_TEXTS:])

    def without_rejected(self, texts: Iterable[str]) -> Pins:
        """Return these pins, which recognise these texts no longer."""
        gone = set(texts)
        return replace(self, rejected_texts=tuple(each for each in self.rejected_texts if each not in gone))
