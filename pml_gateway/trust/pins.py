"""Pins: the definitions that were accepted and those held back, on disk, shared by every gateway on this home."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pml_gateway.files import Signature
from pml_gateway.log import get_logger
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import DamagedDocumentError, Document, compact, parsed
from pml_gateway.storage.single_flight_cache import SingleFlightCache
from pml_gateway.trust.identity import Identity, Key
from pml_gateway.trust.verdict import Level, Reason, RiskClass, SubjectKind, Verdict
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

FORMAT = 2

LOCK_SECONDS = 10.0
"""The lock is held for milliseconds; a gateway that does not get it decides by what it knows."""

MAX_FORMS = 8
"""Accepted forms of one definition that are kept, those listed last: some servers write the date into every listing."""

MAX_HELD = 8
"""Forms of one definition that wait at the same time, the newest."""

MAX_SERVER_BYTES = 2 * 1024 * 1024
"""JSON of the definitions that are kept of one server; what is past it is known by its hash alone."""

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


class PinsFile:
    """The pins of one configuration on disk; what cannot be written is remembered for as long as this process lives."""

    def __init__(self, directory: Path, identity: str, read: SingleFlightCache[Pins] | None = None) -> None:
        """Name the file; `read` holds the pins that other gateways of this process have read."""
        self._read = read or SingleFlightCache[Pins](0)
        self.path = directory / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
        self._document = Document(
            kinds.PINS, self.path, decode=_decoded, encode=_written, empty=lambda: self._pins, lock_seconds=LOCK_SECONDS
        )
        self._seen: Signature = None
        self._pins = Pins()
        self._is_unsaved = False
        self.problem = ""
        """The error of the last read or write, or an empty text."""

    @property
    def pins(self) -> Pins:
        """The pins as they were read or written here last."""
        return self._pins

    @property
    def is_news(self) -> bool:
        """Return True if another process has written the file since it was last read or written here."""
        return self._document.signature != self._seen

    @property
    def needs_writing(self) -> bool:
        """Return True if the file is missing or lacks what this process knows."""
        return self._seen is None or self._is_unsaved

    def load(self) -> Pins:
        """Return the pins on disk; those remembered where nothing else was written since, or the file is of no use."""
        stamp = self._document.signature
        if stamp == self._seen:
            return self._pins
        self._seen = stamp
        if stamp is None:
            return self._pins
        try:
            self._pins = self._read.get((self.path, stamp), self._document.load)
            self.problem, self._is_unsaved = "", False
        except OSError as error:
            self.problem = f"{self.path} cannot be read ({error.strerror or error})"
        except DamagedDocumentError as error:
            # What this process knew still holds; one that knew nothing judges everything anew.
            self.problem = f"{self.path} is damaged ({error})"
            logger.error("%s; it is set aside, and what it accepted is judged anew", self.problem)
            if self._document.set_aside():
                self._seen = None
        return self._pins

    def change(self, change: Callable[[Pins], Pins]) -> Pins:
        """Change the pins on disk, and give them as they are then.

        Raises:
            OSError: they could not be written; this process goes by the changed ones all the same.
        """
        is_changed = False
        try:
            with self._document.locked():
                self.path.parent.chmod(0o700)
                before = self.load()
                self._pins = change(before)
                is_changed = True
                if self._seen is not None:
                    # One that cannot be read must not be replaced: others may have written into it.
                    self.path.open("rb").close()
                if self._pins != before or self.needs_writing:
                    bounded = {key: _bounded(each) for key, each in self._pins.servers.items()}
                    if bounded != self._pins.servers:
                        self._pins = replace(self._pins, servers=bounded)
                    self._document.write(self._pins)
                self._seen = self._document.signature
                self.problem, self._is_unsaved = "", False
        except OSError as error:
            if not is_changed:
                self._pins = change(self.load())
            self._is_unsaved = True
            self.problem = f"{self.path} cannot be written ({error.strerror or error})"
            raise
        return self._pins


def _bounded(pins: ServerPins) -> ServerPins:
    """Return the pins with at most `MAX_SERVER_BYTES` of definitions; without one, a form is compared by its hash.

    The oldest go first of those that others have replaced, and then the largest.
    """
    kept = [
        (name, key, each)
        for name in ("accepted", "held", "rejected")
        for key, forms in getattr(pins, name).items()
        for each in forms
        if each.definition
    ]
    sizes = {id(each): len(compact(each.definition)) for _, _, each in kept}
    excess = sum(sizes.values()) - MAX_SERVER_BYTES
    if excess <= 0:
        return pins
    needed = {id(forms[-1]) for forms in pins.accepted.values()}
    needed |= {id(forms[-1]) for forms in pins.held.values()}
    emptied = set[int]()
    for _, _, each in sorted(
        kept, key=lambda item: (id(item[2]) in needed, item[2].at if id(item[2]) not in needed else -sizes[id(item[2])])
    ):
        if excess <= 0:
            break
        emptied.add(id(each))
        excess -= sizes[id(each)]
    changed: dict[str, Any] = {
        name: {
            key: tuple(replace(each, definition={}) if id(each) in emptied else each for each in forms)
            for key, forms in getattr(pins, name).items()
        }
        for name in ("accepted", "held", "rejected")
    }
    return replace(pins, **changed)


def _written(pins: Pins) -> str:
    """Return the pins as JSON, in pieces: written at once, many would keep every other thread waiting."""
    servers = ",".join(_written_server(each) for each in pins.servers.values())
    return f'{{"format":{FORMAT},"rejected":{compact(pins.rejected_texts)},"servers":[{servers}]}}'


def _written_server(pins: ServerPins) -> str:
    accepted = ",".join([compact([*key, [*map(_encoded_form, forms)]]) for key, forms in pins.accepted.items()])
    held = ",".join([compact([*key, [*map(_encoded_held, held)]]) for key, held in pins.held.items()])
    rejected = ",".join([compact([*key, [*map(_encoded_held, held)]]) for key, held in pins.rejected.items()])
    identity = f'"server":{compact(pins.server)},"what":{compact(pins.what)}'
    return f'{{{identity},"accepted":[{accepted}],"held":[{held}],"rejected":[{rejected}]}}'


def _encoded_form(form: Form) -> JsonObject:
    return {
        "definition": form.definition,
        "digest": form.digest,
        "how": form.how,
        "at": form.at,
        "verdict": encoded_verdict(form.verdict),
    }


def _encoded_held(held: HeldForm) -> JsonObject:
    return {
        "definition": held.definition,
        "digest": held.digest,
        "because": held.because,
        "at": held.at,
        "verdict": encoded_verdict(held.verdict),
        "text_only": held.is_text_only,
    }


def encoded_verdict(verdict: Verdict | None) -> JsonObject | None:
    """Return a verdict as JSON."""
    if verdict is None:
        return None
    reasons = [each.as_json() for each in verdict.reasons]
    return {"level": verdict.level, "score": verdict.score, "reasons": reasons}


def _decoded(content: bytes) -> Pins:
    raw = parsed(content, FORMAT)
    servers = [
        ServerPins(
            str(each["server"]),
            str(each["what"]),
            {_key(*key): tuple(map(_form, forms)) for *key, forms in each["accepted"]},
            {_key(*key): tuple(map(_held, held)) for *key, held in each["held"]},
            {_key(*key): tuple(map(_held, held)) for *key, held in each["rejected"]},
        )
        for each in raw["servers"]
    ]
    return Pins({(each.server, each.what): each for each in servers}, tuple(map(str, raw["rejected"])))


def _key(kind: str, name: str) -> Key:
    return SubjectKind(kind), str(name)


def _form(raw: JsonObject) -> Form:
    definition = _object(raw["definition"])
    return Form(definition, str(raw["digest"]), Acceptance(raw["how"]), float(raw["at"]), _verdict(raw["verdict"]))


def _held(raw: JsonObject) -> HeldForm:
    definition, because = _object(raw["definition"]), HoldReason(raw["because"])
    args = (definition, str(raw["digest"]), because, float(raw["at"]), _verdict(raw["verdict"]))
    return HeldForm(*args, raw["text_only"] is True)


def _object(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where a definition belongs")
    return value


def _verdict(raw: JsonObject | None) -> Verdict | None:
    if raw is None:
        return None
    reasons = (Reason(RiskClass(each["class"]), str(each["where"]), str(each["text"])) for each in raw["reasons"])
    level = None if raw["level"] is None else Level(raw["level"])
    return Verdict(level, float(raw["score"]), tuple(reasons))
