"""Admission: which definitions of what servers listed may be served; changes are judged before any client sees them.

What is not admitted is left out of the listings that the catalog is built from, so that nothing behind it can tell it
from what does not exist. Where only text is held back, the form that was accepted takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from pml_gateway.catalog.manifest import ManifestEntry
from pml_gateway.catalog.skills import frontmatter_of
from pml_gateway.config.settings import TrustSettings
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Difference, Offers
from pml_gateway.telemetry.events import DefinitionsDecided
from pml_gateway.trust.identity import (
    SERVER,
    Identity,
    Key,
    differs_in_text_only,
    digest,
    is_identical,
    likenesses_of,
    name_of,
    with_texts_of,
)
from pml_gateway.trust.pins import MAX_HELD, Acceptance, Form, HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.recognition import recognises
from pml_gateway.trust.verdict import Level, Peer, Reason, RiskClass, Subject, SubjectKind, Verdict, peer_of
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

VARIES_FROM = 3
"""Accepted forms from which a definition is said to differ at every connection, once; after that nothing is said."""

MAX_ABSENT = 5_000
"""Pins of one server that are kept of what it no longer lists, the newest: it may come back."""

_KINDS: Mapping[str, SubjectKind] = {
    "tools": SubjectKind.TOOL,
    "prompts": SubjectKind.PROMPT,
    "templates": SubjectKind.TEMPLATE,
    "resources": SubjectKind.RESOURCE,
    "skills": SubjectKind.SKILL,
}
"""The lists whose definitions are judged. All but resources are pinned: those come and go with what a server holds."""

SENTENCE_WORDS = 4
"""Minimum number of words in a text that may give orders; file names have fewer."""

_UNREADABLE = Verdict(Level.ATTACK, 1.0, (Reason(RiskClass.OBFUSCATED_TEXT, "", "the lint could not read it"),))


class Judge(Protocol):
    """Says which definitions are risky."""

    def judge(self, subjects: Sequence[Subject], peers: Collection[Peer] = ()) -> list[Verdict]:
        """One verdict per subject, in their order."""


@dataclass(frozen=True, slots=True)
class ServerListing:
    """The lists of one server, and its identity; `was_served` is True if it was judged and served before this start."""

    entry: ManifestEntry
    identity: Identity
    was_served: bool = False


@dataclass(frozen=True, slots=True)
class SettledServer:
    """A server all of whose definitions were accepted: as long as neither they nor its pins change, nothing does."""

    heard: ServerListing
    pins: ServerPins

    def holds(self, heard: ServerListing, pins: Pins) -> bool:
        """Return True if the server still lists exactly what was accepted."""
        then, now = self.heard.entry, heard.entry
        return (
            pins.of(self.pins.server, heard.identity) is self.pins
            and heard.identity == self.heard.identity
            and now.tools is then.tools
            and (now.server_name, now.server_version) == (then.server_name, then.server_version)
            and (now.offers, now.differences) == (then.offers, then.differences)
        )

    def peers(self) -> Iterator[Peer]:
        """Yield the tools that are served."""
        for tool in self.heard.entry.tools:
            yield peer_of(self.pins.server, name_of(SubjectKind.TOOL, tool), tool)


@dataclass(frozen=True, slots=True)
class Admission:
    """The outcome of a review: listings to serve, new pins, events, and servers that need no further review."""

    entries: Mapping[str, ManifestEntry]
    pins: Pins
    news: tuple[DefinitionsDecided, ...] = ()
    settled: Mapping[str, SettledServer] = field(default_factory=dict)
    held_back: Mapping[str, tuple[JsonObject, ...]] = field(default_factory=dict)
    """By server id, the accepted definitions of tools that are listed and not served."""


def admit(
    heard: Mapping[str, ServerListing],
    policy: TrustSettings,
    pins: Pins,
    judge: Judge,
    *,
    now: float,
    digest_of: Callable[[JsonObject], str] = digest,
    settled: Mapping[str, SettledServer] = MappingProxyType({}),
) -> Admission:
    """Decide what to serve of the servers' listings. Judging is slow: call it in a thread.

    Args:
        heard: by server id, what each listed.
        policy: what becomes of changes and of new servers.
        pins: what was accepted before.
        judge: asked about changes only, and under `trust.changes: hold_attacks`.
        now: Unix seconds, noted with what is new.
        digest_of: `identity.digest`, remembered.
        settled: the servers that were settled after the admission before.
    """
    known = {server: each for server, each in settled.items() if server in heard and each.holds(heard[server], pins)}
    reviews = [
        _Review(server, each, policy, pins, now, digest_of) for server, each in heard.items() if server not in known
    ]
    waiting = [(review, item) for review in reviews for item in review.unjudged]
    returned = [(review, item) for review in reviews for item in review.returned]
    if waiting or returned:
        peers = [peer for review in reviews for peer in review.peers()]
        peers += [peer for each in known.values() for peer in each.peers()]
        verdicts = judged(judge, [review.subject(item) for review, item in waiting], peers) if waiting else []
        for (review, item), verdict in zip(waiting, verdicts, strict=True):
            review.settle(item, verdict)
        # Judged as a whole: a list of what was found is cut, and two texts may stand at paths that are written alike.
        attacks = [each for each, verdict in zip(waiting, verdicts, strict=True) if verdict.is_attack]
        stripped = [
            (review, item, kept)
            for review, item in (*attacks, *returned)
            if (kept := review.stripped(item)) is not None
        ]
        verdicts = judged(judge, [kept for _, _, kept in stripped], peers) if stripped else []
        for (review, item, _), verdict in zip(stripped, verdicts, strict=True):
            if not verdict.is_attack:
                review.keep_without_texts(item)
    news: list[DefinitionsDecided] = []
    held_back = {review.server: held for review in reviews if (held := tuple(review.held_back()))}
    entries = {server: each.entry for server, each in heard.items()}
    for review in reviews:
        entry = entries[review.server]
        entries[review.server] = review.admitted_entry()
        pins = review.pinned_into(pins)
        news += review.news()
        own = pins.of(review.server, heard[review.server].identity)
        if entries[review.server] is entry and own is not None and not own.held:
            known[review.server] = SettledServer(heard[review.server], own)
    return Admission(entries, pins, tuple(news), known, held_back)


def judged(judge: Judge, subjects: Sequence[Subject], peers: Collection[Peer]) -> list[Verdict]:
    """Return a verdict for each subject; what a judge fails on is risky."""
    try:
        return judge.judge(subjects, peers)
    # What servers wrote must stop neither the gateway nor the other servers' changes.
    except Exception as fault:
        if len(subjects) > 1:
            return [verdict for subject in subjects for verdict in judged(judge, [subject], peers)]
        shown = logger.isEnabledFor(logging.DEBUG)
        logger.error("%s while judging a definition of %s", type(fault).__name__, subjects[0].server, exc_info=shown)
        return [_UNREADABLE]


@dataclass(frozen=True, slots=True)
class _Item:
    """One definition as a server lists it."""

    key: Key
    definition: JsonObject
    digest: str


class _Review:
    """Decides about the definitions of one server."""

    def __init__(
        self,
        server: str,
        heard: ServerListing,
        policy: TrustSettings,
        pins: Pins,
        now: float,
        digest_of: Callable[[JsonObject], str],
    ) -> None:
        self.server = server
        self._heard = heard
        self._policy = policy
        self._rejected_texts = pins.rejected_texts
        self._now = now
        self._digest_of = digest_of
        pinned = pins.of(server, heard.identity)
        self._was_judged = pinned is not None and heard.was_served
        self._is_new = pinned is None and not heard.was_served
        self._pins = pinned or ServerPins(server, heard.identity.what)
        # A server that its owner has yet to look at is as new as before, whatever it changes meanwhile.
        self._awaits_review = pinned is not None and policy.new_servers == "review" and SERVER not in pinned.accepted
        self._decided: dict[Key, Form | HeldForm | None] = {}
        self._waiting: dict[Key, tuple[_Item, HoldReason]] = {}
        self.returned: list[_Item] = []
        """Changes that bring back a rejected text for the first time, and may work with the accepted texts."""
        self._stripped: dict[Key, JsonObject | None] = {}
        self._record = self._item(SERVER, _record(heard, self._pins))
        self._items: dict[Key, _Item] = {SERVER: self._record}
        for kind, definition in self._listed():
            # Of equal names the first counts, as it does for the catalog.
            key = (kind, name_of(kind, definition))
            if key not in self._items:
                self._items[key] = self._item(key, definition)
        for item in self._items.values():
            self._decide(item)

    def _item(self, key: Key, definition: JsonObject) -> _Item:
        latest = self._pins.latest(key)
        # At a start this is so for nearly all.
        is_pinned = latest is not None and is_identical(latest.definition, definition)
        return _Item(key, definition, latest.digest if latest and is_pinned else self._digest_of(definition))

    @property
    def unjudged(self) -> list[_Item]:
        """Return the definitions that wait for a verdict."""
        return [item for item, _ in self._waiting.values()]

    def peers(self) -> Iterator[Peer]:
        """Yield the tools that are served, whose names others may take."""
        for item in self._items.values():
            is_served = isinstance(self._decided.get(item.key), Form)
            if item.key[0] is SubjectKind.TOOL and (is_served or item.key in self._pins.accepted):
                yield peer_of(self.server, item.key[1], item.definition)

    def subject(self, item: _Item) -> Subject:
        """Return the subject to judge, with the accepted form that it changes."""
        latest = self._pins.latest(item.key) or self._renamed_from(item)
        before = latest.definition if latest is not None else None
        return subject_of(self.server, item.key, item.definition, before)

    def _renamed_from(self, item: _Item) -> Form | None:
        """Return the accepted form that the server may have renamed to this one: spelled or described alike."""
        return next(
            (found for each in likenesses_of(item.key, item.definition) if (found := self._absent.get(each))), None
        )

    @cached_property
    def _absent(self) -> dict[tuple[SubjectKind, str, str], Form]:
        """Accepted forms that are not listed now, by name spelling and by description."""
        return {
            likeness: forms[-1]
            for key, forms in self._pins.accepted.items()
            if key not in self._items and _is_sound(forms[-1])
            for likeness in likenesses_of(key, forms[-1].definition)
        }

    def settle(self, item: _Item, verdict: Verdict) -> None:
        """Decide by a verdict."""
        _, because = self._waiting.pop(item.key)
        if verdict.is_attack:
            self._set(item, because, verdict)
            return
        before = self._pins.latest(item.key)
        # Only the difference was judged: what stayed of a form that is warned of, or was never read, is read anew.
        self._set(item, Acceptance.NO_ATTACK, verdict if before is None or _is_sound(before) else None)

    def stripped(self, item: _Item) -> Subject | None:
        """Return what the judge is asked about an attack with the accepted texts, unless an accepted form is served."""
        if self._served(item) is not None:
            return None
        latest, kept = self._pins.latest(item.key), self._with_accepted_texts(item)
        if latest is None or kept is None or recognises(self._rejected_texts, kept):
            return None
        return subject_of(self.server, item.key, kept, latest.definition)

    def _with_accepted_texts(self, item: _Item) -> JsonObject | None:
        """Return the definition with the texts of the form that was accepted last, made once; None if there is none."""
        if item.key not in self._stripped:
            latest, kept = self._pins.latest(item.key), None
            if latest is not None and latest.definition:
                with suppress(RecursionError):
                    kept = with_texts_of(latest.definition, item.definition)
            self._stripped[item.key] = kept
        return self._stripped[item.key]

    def keep_without_texts(self, item: _Item) -> None:
        """Serve a definition that is held back with the texts that were accepted."""
        decided = self._decided[item.key]
        if isinstance(decided, HeldForm):
            self._decided[item.key] = replace(decided, is_text_only=True)

    def admitted_entry(self) -> ManifestEntry:
        """Return the listing without what is held back; the very same object where nothing is."""
        entry = self._heard.entry
        record = self._served(self._record)
        if record is None and SERVER in self._pins.accepted:
            # Another version or package than the accepted one: nothing of it was.
            return replace(entry, tools=(), offers=Offers(), differences={})
        tools = self._admitted("tools", entry.tools)
        offers = self._admitted_offers(entry.offers)
        differences = {key: self._admitted_difference(each) for key, each in entry.differences.items()}
        if record is None:
            offers = _without_resources(offers)
            differences = {
                key: replace(each, offers=_without_resources(each.offers)) for key, each in differences.items()
            }
        elif record.get("instructions", "") != offers.instructions:
            offers = replace(offers, instructions=record.get("instructions", ""))
        is_same = tools is entry.tools and offers is entry.offers
        if is_same and all(differences[key] is each for key, each in entry.differences.items()):
            return entry
        return replace(entry, tools=tools, offers=offers, differences=differences)

    def held_back(self) -> Iterator[JsonObject]:
        """Yield what was accepted of each tool that is listed for every client, and not served to any."""
        is_server_gone = self._served(self._record) is None and SERVER in self._pins.accepted
        absent = {each for difference in self._heard.entry.differences.values() for each in difference.missing}
        for tool in self._heard.entry.tools:
            key = (SubjectKind.TOOL, name_of(SubjectKind.TOOL, tool))
            if ("tools", key[1]) in absent:
                continue
            latest = self._pins.latest(key)
            if latest is not None and (is_server_gone or self._served(self._items[key]) is None):
                # A form whose definition was too large to keep is known by its hash; its name is enough here.
                yield latest.definition or {"name": key[1]}

    def pinned_into(self, pins: Pins) -> Pins:
        """Return the pins with what was decided here."""
        own = self._pins
        forms: dict[Key, Form] = {}
        held: dict[Key, tuple[HeldForm, ...]] = {}
        for item in self._items.values():
            match self._decided[item.key]:
                case Form() as form if _is_pinned(item.key) and own.form(item.key, form.digest) is None:
                    forms[item.key] = form
                case Form() as form if _is_pinned(item.key) and self._is_back(item.key, form):
                    forms[item.key] = replace(form, at=self._now)
                case HeldForm() as each:
                    held[item.key] = (each,)
        own = own.with_forms(forms.items()) if forms else own
        held = self._held_with(held, own)
        own = replace(own, held=held) if held != own.held else own
        absent = own.accepted.keys() - self._items.keys()
        if len(absent) > MAX_ABSENT:
            dropped = set([key for key in own.accepted if key in absent][:-MAX_ABSENT])
            own = replace(own, accepted={key: forms for key, forms in own.accepted.items() if key not in dropped})
        return pins.having(own)

    def _is_back(self, key: Key, form: Form) -> bool:
        """Return True if a form is listed again after another one, which no other gateway was listed meanwhile."""
        latest = self._pins.latest(key)
        return latest is not None and latest.digest != form.digest and latest.at < self._heard.entry.listed_at

    def _held_with(self, held: dict[Key, tuple[HeldForm, ...]], own: ServerPins) -> dict[Key, tuple[HeldForm, ...]]:
        """Merge the forms held back here with those that another gateway was listed later."""
        merged: dict[Key, tuple[HeldForm, ...]] = {}
        for key in [*own.held, *(key for key in held if key not in own.held)]:
            mine = {each.digest: each for each in held.get(key, ())}
            newer = [
                each for each in own.held.get(key, ()) if each.digest in mine or each.at > self._heard.entry.listed_at
            ]
            kept = [mine.pop(each.digest, each) for each in newer]
            if kept or mine:
                merged[key] = (*kept, *mine.values())[-MAX_HELD:]
        return merged

    def news(self) -> Iterator[DefinitionsDecided]:
        """Yield events for the owner, one for all definitions with the same outcome."""
        told: dict[str, list[tuple[_Item, Verdict | None]]] = {}
        for item in self._items.values():
            match self._decided[item.key]:
                case Form() as form if _is_pinned(item.key) and self._pins.form(item.key, form.digest) is None:
                    outcome = self._accepted_as(item.key, form)
                    if outcome:
                        told.setdefault(outcome, []).append((item, form.verdict))
                case HeldForm() as each if self._pins.waiting(item.key, each.digest) is None:
                    outcome = "quarantined" if self._served(item) is None else "held_back"
                    told.setdefault(outcome, []).append((item, each.verdict))
        for outcome, items in told.items():
            classes = (str(each) for _, verdict in items if verdict is not None for each in verdict.classes)
            yield DefinitionsDecided(
                self.server,
                outcome,
                tuple((str(item.key[0]), item.key[1], item.digest) for item, _ in items),
                tuple(dict.fromkeys(classes)),
            )

    def _listed(self) -> Iterator[tuple[SubjectKind, JsonObject]]:
        entry = self._heard.entry
        for tools, offers in [(entry.tools, entry.offers)] + [(d.tools, d.offers) for d in entry.differences.values()]:
            for attribute, kind in _KINDS.items():
                for definition in tools if attribute == "tools" else getattr(offers, attribute):
                    yield kind, definition

    def _decide(self, item: _Item) -> None:
        """Decide about a definition, or queue it for the judge."""
        pins, policy = self._pins, self._policy
        waiting = pins.waiting(item.key, item.digest)
        form = pins.form(item.key, item.digest)
        if not item.digest:
            self._set(item, HoldReason.UNREADABLE)
        elif pins.refusal(item.key, item.digest) is not None:
            self._decided[item.key] = None
        elif form is not None:
            self._decided[item.key] = form
        elif item.key[0] is SubjectKind.RESOURCE:
            self._decide_resource(item, waiting)
        elif waiting is None and self._has_returned(item):
            self._set(item, HoldReason.RETURNED)
            self.returned.append(item)
        elif (
            self._is_new
            or self._is_still_new(item)
            or (waiting is not None and waiting.because is HoldReason.NEW_SERVER)
        ):
            accepts = policy.new_servers == "accept"
            self._set(item, Acceptance.NEW_SERVER if accepts else HoldReason.NEW_SERVER)
        elif waiting is not None and waiting.because is HoldReason.RETURNED:
            self._decided[item.key] = waiting
        else:
            self._decide_change(item, waiting.verdict if waiting is not None else None)

    def _decide_resource(self, item: _Item, waiting: HeldForm | None) -> None:
        """Serve a resource unless it is an attack, whether or not its server is new."""
        if self._policy.changes == "notice":
            self._set(item, HoldReason.RETURNED if self._has_returned(item) else Acceptance.POLICY)
        elif waiting is not None:
            self._decided[item.key] = waiting
        elif self._has_returned(item):
            self._set(item, HoldReason.RETURNED)
        elif self._was_judged or not _may_tell(item.definition):
            self._set(item, Acceptance.NO_ATTACK)
        else:
            self._waiting[item.key] = (item, HoldReason.NEW)

    def _is_still_new(self, item: _Item) -> bool:
        return self._awaits_review and item.key not in self._pins.accepted

    def _decide_change(self, item: _Item, verdict: Verdict | None) -> None:
        because = HoldReason.CHANGED if item.key in self._pins.accepted else HoldReason.NEW
        match self._policy.changes:
            case "notice":
                self._set(item, Acceptance.POLICY)
            case "review":
                self._set(item, because, verdict)
            case "hold_attacks":
                if item.key in self._pins.rejected and item.key not in self._pins.accepted:
                    # Its owner wants none of it: a change that nothing is wrong with is no word of his.
                    self._set(item, because, verdict)
                    return
                if verdict is None and item.key == SERVER and not self._says_something_new(item):
                    verdict = Verdict()
                if verdict is not None:
                    self._set(item, because if verdict.is_attack else Acceptance.NO_ATTACK, verdict)
                else:
                    self._waiting[item.key] = (item, because)

    def _says_something_new(self, record: _Item) -> bool:
        latest = self._pins.latest(SERVER)
        before = latest.definition if latest is not None else {}
        return any(before.get(key, "") != record.definition[key] for key in ("instructions", "name"))

    def _has_returned(self, item: _Item) -> bool:
        return recognises(self._rejected_texts, item.definition)

    def _set(self, item: _Item, reason: Acceptance | HoldReason, verdict: Verdict | None = None) -> None:
        decided: Form | HeldForm
        if isinstance(reason, Acceptance):
            decided = Form(item.definition, item.digest, reason, self._now, verdict)
        else:
            before = self._pins.waiting(item.key, item.digest)
            # What is nested too deep to be compared is nested too deep to be written as well.
            kept = item.definition if item.digest else {}
            decided = HeldForm(kept, item.digest, reason, self._now, verdict)
            if before is not None:
                decided = replace(before, because=reason, verdict=verdict or before.verdict)
        self._decided[item.key] = decided

    def _accepted_as(self, key: Key, form: Form) -> str:
        if form.how is Acceptance.NEW_SERVER:
            return "new_server"
        forms = len(self._pins.accepted.get(key, ())) + 1
        if forms < VARIES_FROM:
            return "accepted"
        return "varies" if forms == VARIES_FROM else ""

    def _served(self, item: _Item) -> JsonObject | None:
        """Return what is served for a listed definition: itself, itself with accepted texts, or nothing."""
        decided = self._decided[item.key]
        if isinstance(decided, Form):
            return item.definition
        forms = self._pins.accepted.get(item.key, ())
        for form in reversed(forms):
            if item.digest and differs_in_text_only(form.definition, item.definition):
                return form.definition
        held = decided or self._pins.refusal(item.key, item.digest)
        if held is not None and held.is_text_only and self._policy.changes == "hold_attacks":
            return self._with_accepted_texts(item)
        return None

    @cached_property
    def _gone(self) -> frozenset[tuple[str, str]]:
        """Definitions that no client is served, as (list, name)."""
        lists = {kind: attribute for attribute, kind in _KINDS.items()}
        return frozenset(
            (lists[item.key[0]], item.key[1])
            for item in self._items.values()
            if item.key != SERVER and self._served(item) is None
        )

    def _admitted(self, attribute: str, listed: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        kind = _KINDS[attribute]
        names = dict.fromkeys(name_of(kind, definition) for definition in listed)
        served = [self._served(self._items[kind, name]) for name in names]
        is_same = len(served) == len(listed) and all(now is then for now, then in zip(served, listed, strict=True))
        return listed if is_same else tuple(each for each in served if each is not None)

    def _admitted_offers(self, offers: Offers) -> Offers:
        prompts = self._admitted("prompts", offers.prompts)
        templates = self._admitted("templates", offers.templates)
        resources = self._admitted("resources", offers.resources)
        skills = self._admitted("skills", offers.skills)
        admitted = replace(offers, prompts=prompts, templates=templates, resources=resources, skills=skills)
        is_same = all(getattr(admitted, each) is getattr(offers, each) for each in _KINDS if each != "tools")
        return offers if is_same else admitted

    def _admitted_difference(self, difference: Difference) -> Difference:
        tools, offers = self._admitted("tools", difference.tools), self._admitted_offers(difference.offers)
        # What is served to no client is missing for no client in particular.
        missing = tuple(each for each in difference.missing if each not in self._gone)
        if tools is difference.tools and offers is difference.offers and missing == difference.missing:
            return difference
        return Difference(tools, offers, missing)


def _is_pinned(key: Key) -> bool:
    return key[0] is not SubjectKind.RESOURCE


def _may_tell(resource: JsonObject) -> bool:
    """Return True if any text of a resource is long enough to hold more than a name."""
    return any(
        len(value.split()) >= SENTENCE_WORDS or not value.isascii()
        if isinstance(value, str)
        else isinstance(value, dict | list)
        for value in resource.values()
    )


def _is_sound(form: Form) -> bool:
    """Return True if the whole form was judged or approved, so that its unchanged parts need no verdict."""
    return form.how is Acceptance.OWNER or (form.verdict is not None and not form.verdict.is_attack)


def _without_resources(offers: Offers) -> Offers:
    """Return the offers of a server whose own record is not accepted: no instructions, resources and skills."""
    declared = offers.capabilities.declared.items()
    kept = ServerCapabilities({name: parts for name, parts in declared if name != "resources" or offers.templates})
    return replace(offers, resources=(), skills=(), instructions="", capabilities=kept)


def _record(heard: ServerListing, pins: ServerPins) -> JsonObject:
    """Return the server's own record; a name or version that it leaves out this time is taken from the pins."""
    latest, entry = pins.latest(SERVER), heard.entry
    before = latest.definition if latest is not None else {}
    return {
        "instructions": entry.offers.instructions,
        "name": entry.server_name or before.get("name", ""),
        "version": entry.server_version or before.get("version", ""),
        "package": heard.identity.package.name,
        "package_version": heard.identity.package.version,
    }


def subject_of(server: str, key: Key, definition: JsonObject, before: JsonObject | None = None) -> Subject:
    """Return the subject to judge for one definition."""
    if key == SERVER:
        said = {name: definition.get(name, "") for name in ("instructions", "name", "version")}
        said_before = None if before is None else {name: before.get(name, "") for name in said}
        return Subject(key[0], server, said, said_before)
    if key[0] is SubjectKind.SKILL:
        # Its files are named by their digests, which say nothing to a model.
        return Subject(key[0], server, frontmatter_of(definition), None if before is None else frontmatter_of(before))
    return Subject(key[0], server, definition, before)
