"""The trust gate of one gateway: admits what its servers list, keeps the pins, and queues definitions for the lint."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pml_gateway.catalog.manifest import ManifestEntry
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import TrustSettings
from pml_gateway.errors import SharedStateError
from pml_gateway.storage.places import TRUST, warn_unwritable
from pml_gateway.telemetry.events import DefinitionsDecided
from pml_gateway.trust.admission import (
    Admission,
    Judge,
    ServerListing,
    SettledServer,
    admit,
    judged,
    subject_of,
)
from pml_gateway.trust.identity import Key, digest, identity_of
from pml_gateway.trust.pins import Acceptance, Form, HeldForm, Pins, ServerPins
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.verdict import Peer, Subject, SubjectKind, Verdict, peer_of
from pml_gateway.types import JsonObject

MAX_VERDICTS = 100_000
"""Verdicts that this process remembers, so that what goes back and forth is judged once; the oldest go first."""


def shipped_judge() -> Judge:
    """Return the lint."""
    # It takes 0.06 s to import, which a start with unchanged tools never needs.
    from pml_gateway.trust.lint import Linter

    return Linter()


@dataclass(frozen=True, slots=True)
class UnlintedDefinitions:
    """Definitions that the lint has not judged: id and identity of each server, key and form of the definition."""

    places: tuple[tuple[str, str, Key, Form | HeldForm], ...]
    peers: tuple[Peer, ...]

    @property
    def subjects(self) -> list[Subject]:
        """Return the subjects to judge."""
        return [subject_of(server, key, each.definition) for server, _, key, each in self.places]

    def slices(self, count: int) -> Iterator[UnlintedDefinitions]:
        """Yield the same in parts."""
        for start in range(0, len(self.places), count):
            yield replace(self, places=self.places[start : start + count])


class TrustGate:
    """Admits listings. All but the properties may block: call it in a thread, from one at a time."""

    def __init__(self, file: PinsFile, make_judge: Callable[[], Judge] = shipped_judge) -> None:
        self._file = file
        self._make_judge = make_judge
        self._verdicts: dict[str, Verdict] = {}
        self._digests: dict[int, tuple[JsonObject, str]] = {}
        self._remembered: frozenset[str] = frozenset()
        self._pins = Pins()
        self._servers: dict[str, ServerPins] = {}
        self._settled: Mapping[str, SettledServer] = {}
        self._held_back: Mapping[str, tuple[JsonObject, ...]] = {}
        self._news: list[DefinitionsDecided] = []

    @property
    def file(self) -> PinsFile:
        """The file of the pins."""
        return self._file

    @property
    def is_news(self) -> bool:
        """Return True if another process has written pins since listings were last admitted."""
        return self._file.is_news or self._file.pins is not self._pins

    @property
    def servers(self) -> Mapping[str, ServerPins]:
        """The pins of the servers that are configured now, by id."""
        return self._servers

    @property
    def held_count(self) -> int:
        """The number of definitions that are held back."""
        return sum(len(pins.held) for pins in self._servers.values())

    @property
    def held_back(self) -> Mapping[str, tuple[JsonObject, ...]]:
        """By server id, the accepted definitions of tools that are listed now and not served."""
        return self._held_back

    @property
    def held_skills(self) -> frozenset[tuple[str, str]]:
        """By server id and URI, the skills whose latest form is held back or rejected."""
        return frozenset(
            (server, name)
            for server, pins in self._servers.items()
            for kind, name in (*pins.held, *pins.rejected)
            if kind is SubjectKind.SKILL
        )

    def holds_back(self, server: str, key: Key) -> bool:
        """Return True if the latest form of a definition is held back or rejected."""
        pins = self._servers.get(server)
        return pins is not None and (key in pins.held or key in pins.rejected)

    def remember(self, servers: Collection[str]) -> None:
        """Note which servers were served before this start: if their pins are lost, they are not new."""
        self._remembered = frozenset(servers)

    def admit(
        self, entries: Mapping[str, ManifestEntry], definitions: Mapping[str, UpstreamDefinition], policy: TrustSettings
    ) -> Mapping[str, ManifestEntry]:
        """Return what may be served of these listings, by server id."""
        heard = {
            server: ServerListing(entry, identity_of(definitions[server]), server in self._remembered)
            for server, entry in entries.items()
        }
        last: list[tuple[Pins, Admission]] = []

        def decided(pins: Pins) -> Pins:
            found = admit(heard, policy, pins, self, now=time.time(), digest_of=self._digest, settled=self._settled)
            last.append((pins, found))
            return found.pins

        before = self._file.load()
        if decided(before) is not before or (heard and self._file.needs_writing):
            self._keep(decided)
        # The owner may have decided while the first ones were judged.
        before, admission = last[-1]
        self._news += [*self._owners_word(heard, before), *admission.news]
        self._pins, self._settled = admission.pins, admission.settled
        self._held_back = admission.held_back
        self._servers = {
            server: pins for server, each in heard.items() if (pins := self._pins.of(server, each.identity)) is not None
        }
        self._remembered = frozenset()
        listed = {id(each) for entry in entries.values() for each in _definitions(entry)}
        self._digests = {key: known for key, known in self._digests.items() if key in listed}
        return admission.entries

    def _owners_word(self, heard: Mapping[str, ServerListing], now: Pins) -> Iterator[DefinitionsDecided]:
        """Yield the owner's decisions that another process has written since the last admission."""
        if now is self._pins:
            return
        for server, each in heard.items():
            before, after = self._servers.get(server), now.of(server, each.identity)
            if before is None or after is None or before is after:
                continue
            approved = [
                (str(key[0]), key[1], form.digest)
                for key, forms in after.accepted.items()
                for form in forms
                if form.how is Acceptance.OWNER and not _owners(before.form(key, form.digest))
            ]
            rejected = [
                (str(key[0]), key[1], held.digest)
                for key, all_held in after.rejected.items()
                for held in all_held
                if before.refusal(key, held.digest) is None
            ]
            for outcome, definitions in (("approved", approved), ("rejected", rejected)):
                if definitions:
                    yield DefinitionsDecided(server, outcome, tuple(definitions))

    def unlinted(self) -> UnlintedDefinitions:
        """Return the definitions that were accepted or held back without a verdict."""
        places = tuple(
            (pins.server, pins.what, key, each) for pins in self._servers.values() for key, each in _unlinted(pins)
        )
        peers = tuple(
            peer_of(server, name, forms[-1].definition)
            for server, pins in self._servers.items()
            for (kind, name), forms in pins.accepted.items()
            if kind is SubjectKind.TOOL
        )
        return UnlintedDefinitions(places, peers)

    def lint(self, unlinted: UnlintedDefinitions) -> None:
        """Judge definitions; the verdicts are cached, and `note` stores them."""
        judged(self, unlinted.subjects, unlinted.peers)

    def note(self, unlinted: UnlintedDefinitions) -> None:
        """Judge definitions and store the verdicts in the pins; report those that are risky."""
        verdicts = judged(self, unlinted.subjects, unlinted.peers)
        found = {
            (server, what, key, each.digest): verdict
            for (server, what, key, each), verdict in zip(unlinted.places, verdicts, strict=True)
        }
        mine = self._pins

        def noted(pins: Pins) -> Pins:
            changed = _with_verdicts(pins, found)
            # What another process wrote is news, and stays so until listings are admitted by it.
            self._pins = changed if pins is mine else _with_verdicts(mine, found)
            return changed

        self._keep(noted)
        self._servers = {key: self._pins.servers.get((key, each.what), each) for key, each in self._servers.items()}
        flagged: dict[str, list[tuple[Key, str, Verdict]]] = {}
        for (server, _, key, own), verdict in found.items():
            pins = self._servers.get(server)
            form = None if pins is None else pins.form(key, own)
            if form is not None and form.is_flagged:
                flagged.setdefault(server, []).append((key, own, verdict))
        for server, forms in flagged.items():
            classes = (str(each) for _, _, verdict in forms for each in verdict.classes)
            names = tuple((str(key[0]), key[1], own) for key, own, _ in forms)
            self._news.append(DefinitionsDecided(server, "flagged", names, tuple(dict.fromkeys(classes))))

    @property
    def has_unread(self) -> bool:
        """Return True if a form that was accepted or held back has no verdict yet."""
        return any(True for pins in self._servers.values() for _ in _unlinted(pins))

    def take_news(self) -> list[DefinitionsDecided]:
        """Return the events since the last call, and forget them."""
        news, self._news = self._news, []
        return news

    def judge(self, subjects: Sequence[Subject], peers: Collection[Peer] = ()) -> list[Verdict]:
        """Verdicts of the lint, each found once."""
        keys = [_subject_key(subject) for subject in subjects]
        new = {key: subject for key, subject in zip(keys, subjects, strict=True) if key not in self._verdicts}
        if new:
            found = self._judge.judge(list(new.values()), peers)
            self._verdicts |= dict(zip(new, found, strict=True))
        answer = [self._verdicts[key] for key in keys]
        self._verdicts = dict(list(self._verdicts.items())[-MAX_VERDICTS:])
        return answer

    @cached_property
    def _judge(self) -> Judge:
        return self._make_judge()

    def _keep(self, change: Callable[[Pins], Pins]) -> None:
        try:
            self._file.change(change)
        except (OSError, SharedStateError) as error:
            warn_unwritable(TRUST, self._file.path, error)

    def _digest(self, definition: JsonObject) -> str:
        known = self._digests.get(id(definition))
        if known is None or known[0] is not definition:
            known = self._digests[id(definition)] = (definition, digest(definition))
        return known[1]


def _definitions(entry: ManifestEntry) -> Collection[JsonObject]:
    found = list[JsonObject]()
    differences = [(each.tools, each.offers) for each in entry.differences.values()]
    for tools, offers in [(entry.tools, entry.offers), *differences]:
        found += [*tools, *offers.prompts, *offers.templates, *offers.resources, *offers.skills]
    return found


def _owners(form: Form | None) -> bool:
    return form is not None and form.how is Acceptance.OWNER


def _unlinted(pins: ServerPins) -> Iterator[tuple[Key, Form | HeldForm]]:
    for key, forms in pins.accepted.items():
        yield from ((key, form) for form in forms if form.verdict is None)
    for key, all_held in pins.held.items():
        yield from ((key, held) for held in all_held if held.verdict is None and held.definition)


def _subject_key(subject: Subject) -> str:
    before = "" if subject.before is None else digest(subject.before)
    return f"{subject.kind}\0{subject.server}\0{digest(subject.definition)}\0{before}"


def _with_verdicts(pins: Pins, found: Mapping[tuple[str, str, Key, str], Verdict]) -> Pins:
    changed: dict[tuple[str, str], ServerPins] = {}
    for (server, what, key, own), verdict in found.items():
        each = changed.get((server, what)) or pins.servers.get((server, what))
        if each is None:
            continue
        forms = tuple(replace(f, verdict=verdict) if f.digest == own else f for f in each.accepted.get(key, ()))
        if forms:
            each = replace(each, accepted={**each.accepted, key: forms})
        if each.waiting(key, own) is not None:
            read = tuple(replace(h, verdict=verdict) if h.digest == own else h for h in each.held[key])
            each = replace(each, held={**each.held, key: read})
        changed[server, what] = each
    for each in changed.values():
        pins = pins.having(each)
    return pins
