"""The file of the pins, shared by every gateway on this home and by all replicas."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_gateway.errors import SharedStateError
from pml_gateway.files import Signature
from pml_gateway.log import get_logger
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import DamagedDocumentError, Document, compact, parsed
from pml_gateway.storage.single_flight_cache import SingleFlightCache
from pml_gateway.trust.identity import Key
from pml_gateway.trust.merging import merged
from pml_gateway.trust.pins import Acceptance, Form, HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.verdict import Level, Reason, RiskClass, SubjectKind, Verdict
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.storage.shared_documents import SharedDocuments

logger = get_logger(__name__)

FORMAT = 2

LOCK_SECONDS = 10.0
"""The lock is held for milliseconds; a gateway that does not get it decides by what it knows."""

MAX_SERVER_BYTES = 2 * 1024 * 1024
"""JSON of the definitions that are kept of one server; what is past it is known by its hash alone."""


class PinsFile:
    """The pins of one configuration on disk; what cannot be written is remembered for as long as this process lives."""

    def __init__(
        self,
        directory: Path,
        identity: str,
        read: SingleFlightCache[Pins] | None = None,
        documents: SharedDocuments | None = None,
    ) -> None:
        """Name the file.

        Args:
            directory: where it lies.
            identity: that of the configuration.
            read: pins that other gateways of this process have read.
            documents: what replicas have in common, if this configuration is that of several.
        """
        self._read = read or SingleFlightCache[Pins](0)
        self.path = directory / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
        self._document = Document(
            kinds.PINS, self.path, decode=_decoded, encode=_written, empty=lambda: self._pins, lock_seconds=LOCK_SECONDS
        )
        if documents is not None:
            self._document = documents.shared("pins", self._document, merged)
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
            SharedStateError: replicas share them, and Redis does not answer; likewise.
        """
        changed: list[Pins] = []

        def work() -> None:
            self.path.parent.chmod(0o700)
            before = self.load()
            pins = change(before)
            changed.append(pins)
            if self._seen is not None:
                # One that cannot be read must not be replaced: others may have written into it.
                self.path.open("rb").close()
            if pins != before or self.needs_writing:
                bounded = {key: _bounded(each) for key, each in pins.servers.items()}
                if bounded != pins.servers:
                    pins = replace(pins, servers=bounded)
                self._document.write(pins)
            self._pins, self._seen = pins, self._document.signature
            self.problem, self._is_unsaved = "", False

        try:
            self._document.exclusively(work)
        except (OSError, SharedStateError) as error:
            self._pins = changed[-1] if changed else change(self.load())
            self._is_unsaved = True
            if isinstance(error, OSError):
                self.problem = f"{self.path} cannot be written ({error.strerror or error})"
            else:
                self.problem = error.message
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
