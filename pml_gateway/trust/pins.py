"""Pins: the definitions that were accepted and those held back, on disk, shared by every gateway on this home."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pml_gateway.files import locked, write_atomically
from pml_gateway.log import get_logger
from pml_gateway.trust.identity import Identity, Key
from pml_gateway.trust.lint import SubjectKind
from pml_gateway.trust.verdict import Reason, RiskClass, Verdict
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

FORMAT = 1

LOCK_SECONDS = 10.0
"""The lock is held for milliseconds; a gateway that does not get it decides by what it knows."""

MAX_FORMS = 8
"""Accepted forms of one definition that are kept, the newest: some servers write the date into every listing."""

MAX_KNOWN = 5_000
"""Definitions that are recognised under another name or server; the oldest go first."""


class Accepted(StrEnum):
    """How a form came to be accepted."""

    UPGRADE = "upgrade"
    """It was served before there were pins."""
    NEW_SERVER = "new_server"
    """Its server was new, and `trust.new_servers` accepts those."""
    NOT_RISKY = "not_risky"
    POLICY = "policy"
    """`trust.changes` accepts every change."""
    OWNER = "owner"


class Because(StrEnum):
    """Why a definition is held back."""

    CHANGED = "changed"
    NEW = "new"
    NEW_SERVER = "new_server"
    RETURNED = "returned"
    """It was held back or rejected before, under another name or at another server."""
    UNREADABLE = "unreadable"
    """It is nested too deep to be compared."""


@dataclass(frozen=True, slots=True)
class Form:
    """One accepted form of a definition; `verdict` is what the lint said, once it was asked."""

    definition: JsonObject
    digest: str
    how: Accepted
    at: float
    verdict: Verdict | None = None

    @property
    def is_flagged(self) -> bool:
        """Whether it was accepted without its owner's word, and the lint warns of it."""
        return self.how is not Accepted.OWNER and self.verdict is not None and self.verdict.is_risky


@dataclass(frozen=True, slots=True)
class Held:
    """A form that is held back, or was rejected; `at` says since when (Unix seconds)."""

    definition: JsonObject
    digest: str
    because: Because
    at: float
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class ServerPins:
    """The pins of one server, which is known by its id and by what it is."""

    server: str
    what: str
    fingerprint: str
    accepted: Mapping[Key, tuple[Form, ...]] = field(default_factory=dict)
    held: Mapping[Key, Held] = field(default_factory=dict)
    rejected: Mapping[Key, tuple[Held, ...]] = field(default_factory=dict)

    def form(self, key: Key, digest: str) -> Form | None:
        """The accepted form of this hash."""
        return next((form for form in self.accepted.get(key, ()) if form.digest == digest), None)

    @property
    def forms(self) -> Iterator[Form]:
        """All accepted forms."""
        return (form for forms in self.accepted.values() for form in forms)

    def latest(self, key: Key) -> Form | None:
        """The form that was accepted last."""
        forms = self.accepted.get(key, ())
        return forms[-1] if forms else None

    def refuses(self, key: Key, digest: str) -> bool:
        """Whether the owner rejected exactly this definition."""
        return any(each.digest == digest for each in self.rejected.get(key, ()))

    def with_forms(self, forms: Iterable[tuple[Key, Form]]) -> ServerPins:
        """These pins with more accepted forms, which are held back and rejected no longer."""
        accepted, held, rejected = dict(self.accepted), dict(self.held), dict(self.rejected)
        for key, form in forms:
            others = [each for each in accepted.get(key, ()) if each.digest != form.digest]
            accepted[key] = (*others, form)[-MAX_FORMS:]
            if key in held and held[key].digest == form.digest:
                del held[key]
            if key in rejected:
                rejected[key] = tuple(each for each in rejected[key] if each.digest != form.digest)
        return replace(
            self, accepted=accepted, held=held, rejected={key: each for key, each in rejected.items() if each}
        )

    def rejecting(self, key: Key, held: Held) -> ServerPins:
        """These pins with a definition rejected, which is accepted or waits no longer."""
        forms = tuple(each for each in self.accepted.get(key, ()) if each.digest != held.digest)
        accepted = {each: kept for each, kept in self.accepted.items() if each != key}
        rejected = tuple(each for each in self.rejected.get(key, ()) if each.digest != held.digest)
        return replace(
            self,
            accepted={**accepted, key: forms} if forms else accepted,
            held={each: kept for each, kept in self.held.items() if each != key or kept.digest != held.digest},
            rejected={**self.rejected, key: (*rejected, held)},
        )


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one configuration: by server id and what the server is, and what is recognised anywhere.

    `known` has hashes without the name, of what was rejected (true) or held back as risky (false).
    """

    servers: Mapping[tuple[str, str], ServerPins] = field(default_factory=dict)
    known: Mapping[str, bool] = field(default_factory=dict)

    def of(self, server: str, identity: Identity) -> ServerPins | None:
        """The pins of a configured server; one that was configured alike under another id is the same, renamed."""
        found = self.servers.get((server, identity.what))
        if found is not None:
            return found
        alike = (each for each in self.servers.values() if each.fingerprint == identity.fingerprint)
        same = next((each for each in alike if each.what == identity.what), None)
        return None if same is None else replace(same, server=server)

    def having(self, pins: ServerPins) -> Pins:
        """These pins with those of one server."""
        key = (pins.server, pins.what)
        return self if self.servers.get(key) == pins else replace(self, servers={**self.servers, key: pins})

    def knowing(self, nameless: str, *, is_rejected: bool) -> Pins:
        """These pins, which recognise one more definition under another name or server."""
        if not nameless or self.known.get(nameless) in (True, is_rejected):
            return self
        known = {**self.known, nameless: is_rejected}
        return replace(self, known=dict(list(known.items())[-MAX_KNOWN:]))

    def forgetting(self, nameless: str) -> Pins:
        """These pins, which recognise a definition no longer."""
        return replace(self, known={key: value for key, value in self.known.items() if key != nameless})


Stamp = tuple[int, int, int]
"""What tells one state of a file from another."""


class PinsFile:
    """The pins of one configuration on disk; what cannot be written is remembered for as long as this process lives."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.path = directory / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
        self._seen: Stamp | None = None
        self._pins = Pins()
        self.problem = ""
        """Why the pins could not be written or read, if they could not."""

    @property
    def is_news(self) -> bool:
        """Whether another process wrote the file since it was read or written here."""
        return self._stamp() != self._seen

    @property
    def is_missing(self) -> bool:
        """Whether there was no file when it was looked for last."""
        return self._seen is None

    def load(self) -> Pins:
        """The pins on disk; those remembered where nothing else was written since, none of a damaged file."""
        stamp = self._stamp()
        if stamp == self._seen:
            return self._pins
        self._seen = stamp
        if stamp is None:
            return self._pins
        try:
            # A hook in Python lets other threads have their turn while the whole file is read.
            raw = json.loads(self.path.read_bytes(), object_hook=_unchanged)
            self._pins = _decoded(raw)
            self.problem = ""
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            # What this process knew still holds; another one judges everything anew.
            self.problem = f"{self.path} is unreadable ({error})"
            logger.error(
                "%s; definitions that were accepted are judged anew, and the file is written again", self.problem
            )
            self._set_aside()
        return self._pins

    def change(self, change: Callable[[Pins], Pins]) -> Pins:
        """Change the pins on disk, and give them as they are then.

        Raises:
            OSError: they could not be written; this process goes by the changed ones all the same.
        """
        try:
            with locked(self.path, LOCK_SECONDS):
                self.path.parent.chmod(0o700)
                before = self.load()
                self._pins = change(before)
                if self._pins != before or self._seen is None:
                    write_atomically(self.path, json.dumps(_encoded(self._pins), separators=(",", ":")))
                self._seen = self._stamp()
                self.problem = ""
        except OSError as error:
            if self._seen != self._stamp():
                self.load()
            self._pins = change(self._pins)
            self.problem = f"{self.path} cannot be written ({error.strerror or error})"
            raise
        return self._pins

    def _set_aside(self) -> None:
        try:
            self.path.replace(self.path.with_suffix(".damaged"))
            self._seen = None
        except OSError:
            return

    def _stamp(self) -> Stamp | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _unchanged(value: JsonObject) -> JsonObject:
    return value


def _encoded(pins: Pins) -> JsonObject:
    return {
        "format": FORMAT,
        "known": dict(pins.known),
        "servers": [
            {
                "server": each.server,
                "what": each.what,
                "fingerprint": each.fingerprint,
                "accepted": [[*key, [_encoded_form(form) for form in forms]] for key, forms in each.accepted.items()],
                "held": [[*key, _encoded_held(held)] for key, held in each.held.items()],
                "rejected": [[*key, [_encoded_held(held) for held in all]] for key, all in each.rejected.items()],
            }
            for each in pins.servers.values()
        ],
    }


def _encoded_form(form: Form) -> JsonObject:
    return {
        "definition": form.definition,
        "digest": form.digest,
        "how": form.how,
        "at": form.at,
        "verdict": encoded_verdict(form.verdict),
    }


def _encoded_held(held: Held) -> JsonObject:
    return {
        "definition": held.definition,
        "digest": held.digest,
        "because": held.because,
        "at": held.at,
        "verdict": encoded_verdict(held.verdict),
    }


def encoded_verdict(verdict: Verdict | None) -> JsonObject | None:
    """A verdict as JSON."""
    if verdict is None:
        return None
    reasons = [{"class": each.risk_class, "where": each.where, "text": each.text} for each in verdict.reasons]
    return {"risky": verdict.is_risky, "score": verdict.score, "reasons": reasons}


def _decoded(raw: JsonObject) -> Pins:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r} instead of {FORMAT}")
    servers = [
        ServerPins(
            str(each["server"]),
            str(each["what"]),
            str(each["fingerprint"]),
            {_key(*key): tuple(map(_form, forms)) for *key, forms in each["accepted"]},
            {_key(*key): _held(held) for *key, held in each["held"]},
            {_key(*key): tuple(map(_held, held)) for *key, held in each["rejected"]},
        )
        for each in raw["servers"]
    ]
    known = {str(key): bool(value) for key, value in raw["known"].items()}
    return Pins({(each.server, each.what): each for each in servers}, known)


def _key(kind: str, name: str) -> Key:
    return SubjectKind(kind), str(name)


def _form(raw: JsonObject) -> Form:
    definition = _object(raw["definition"])
    return Form(definition, str(raw["digest"]), Accepted(raw["how"]), float(raw["at"]), _verdict(raw["verdict"]))


def _held(raw: JsonObject) -> Held:
    definition = _object(raw["definition"])
    return Held(definition, str(raw["digest"]), Because(raw["because"]), float(raw["at"]), _verdict(raw["verdict"]))


def _object(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where a definition belongs")
    return value


def _verdict(raw: JsonObject | None) -> Verdict | None:
    if raw is None:
        return None
    reasons = (Reason(RiskClass(each["class"]), str(each["where"]), str(each["text"])) for each in raw["reasons"])
    return Verdict(bool(raw["risky"]), float(raw["score"]), tuple(reasons))
