"""The owner's review: pending definitions, their differences from accepted ones, and approval or rejection."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.text import escaped, words_of
from pml_gateway.trust.identity import SERVER, Identity, Key, identity_of
from pml_gateway.trust.pins import Acceptance, Because, Form, HeldForm, Pins, ServerPins
from pml_gateway.trust.recognition import texts_to_recognise
from pml_gateway.trust.verdict import SubjectKind, Verdict
from pml_gateway.types import SEPARATORS, JsonObject

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

MAX_COMPARED = 20_000
"""Characters of a text that are compared word by word; a longer one is shown before and after."""

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One place that differs: `before` is None where it was added, `after` where it was removed; texts as JSON."""

    where: str
    before: str | None
    after: str | None
    is_text: bool = False

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The text in pieces, each marked `+`, `-` or a blank for what stays."""
        before, after = self.before or "", self.after or ""
        if max(len(before), len(after)) > MAX_COMPARED:
            return (("-", before), ("+", after))
        old, new = _WORDS.findall(before), _WORDS.findall(after)
        pieces: list[tuple[str, str]] = []
        for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if what == "equal":
                pieces.append((" ", "".join(old[a:b])))
                continue
            if a < b:
                pieces.append(("-", "".join(old[a:b])))
            if c < d:
                pieces.append(("+", "".join(new[c:d])))
        return tuple(pieces)


def changes(before: JsonObject, after: JsonObject) -> list[Change]:
    """Every place in which two definitions differ, in the order of the new one."""
    return list(_changes("", before, after))


def _changes(where: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*after, *(key for key in before if key not in after)]:
            yield from _changes(_joined(where, key), before.get(key, _NOTHING), after.get(key, _NOTHING))
    elif isinstance(before, list) and isinstance(after, list) and not _are_plain(before, after):
        for at in range(max(len(before), len(after))):
            old, new = (each[at] if at < len(each) else _NOTHING for each in (before, after))
            yield from _changes(f"{where}[{at}]", old, new)
    elif before is _NOTHING or after is _NOTHING or _written(before) != _written(after):
        yield Change(where, _shown(before), _shown(after), isinstance(before, str) and isinstance(after, str))


def _are_plain(*lists: list[Any]) -> bool:
    """Return True if the lists hold only scalars, such as names of required parameters."""
    return all(not isinstance(each, dict | list) for one in lists for each in one)


def _joined(where: str, key: str) -> str:
    name = key if re.fullmatch(r"[\w$-]+", key) else json.dumps(key)
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


class State(StrEnum):
    """State of a definition in the owner's review."""

    HELD = "held"
    FLAGGED = "flagged"
    """Accepted with its server, and risky by the lint: served until it is rejected."""
    CHANGED = "changed"
    """A change that was served without the owner's word."""
    REJECTED = "rejected"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Case:
    """One definition of a configured server, as its owner looks at it; `before` is what was accepted last."""

    server: str
    identity: Identity
    key: Key
    state: State
    digest: str
    definition: JsonObject
    before: JsonObject | None
    because: str
    at: float
    verdict: Verdict | None

    @property
    def source(self) -> str:
        """`server:name` of a tool; others say what they are."""
        kind, name = self.key
        if self.key == SERVER:
            return self.server
        return f"{self.server}:{name}" if kind is SubjectKind.TOOL else f"{self.server}:{kind}:{name}"

    @property
    def changes(self) -> list[Change]:
        """Return the differences from the form accepted last, or the whole definition if there is none."""
        return changes(self.before or {}, self.definition)

    @property
    def names(self) -> set[str]:
        """The names by which the owner may mean it."""
        own = self.key[1]
        if self.key == SERVER:
            return {self.server}
        names = {self.source, f"{self.server}:{own}", f"{self.server}__{own}"}
        if not any(separator in own for separator in SEPARATORS):
            # With one, a server could call its own as another's is called.
            names.add(own)
        return names


def cases(pins: Pins, servers: Mapping[str, UpstreamDefinition]) -> list[Case]:
    """Everything that is pinned of these servers; what waits for a decision comes first."""
    found: list[Case] = []
    for server, definition in servers.items():
        identity = identity_of(definition)
        own = pins.of(server, identity)
        if own is not None:
            found += _cases(own, identity)
    order = list(State)
    return sorted(found, key=lambda case: order.index(case.state))


def _cases(pins: ServerPins, identity: Identity) -> list[Case]:
    found: list[Case] = []

    def add(key: Key, state: State, each: Form | HeldForm, before: JsonObject | None) -> None:
        why = each.how if isinstance(each, Form) else each.because
        args = (pins.server, identity, key, state, each.digest, each.definition, before, str(why), each.at)
        found.append(Case(*args, each.verdict))

    for key, all_held in pins.held.items():
        latest = pins.latest(key)
        for held in reversed(all_held):
            add(key, State.HELD, held, None if latest is None else latest.definition)
    for key, all_rejected in pins.rejected.items():
        latest = pins.latest(key)
        for held in reversed(all_rejected):
            add(key, State.REJECTED, held, None if latest is None else latest.definition)
    for key, forms in pins.accepted.items():
        for before, form in reversed([*zip((None, *forms), forms, strict=False)]):
            add(key, _standing(form, is_latest=form is forms[-1]), form, None if before is None else before.definition)
    return found


def _standing(form: Form, *, is_latest: bool) -> State:
    if form.is_flagged and is_latest:
        return State.FLAGGED
    return State.CHANGED if form.how in (Acceptance.NO_ATTACK, Acceptance.POLICY) else State.ACCEPTED


def approved(pins: Pins, chosen: Collection[Case], now: float) -> Pins:
    """Return the pins with exactly these definitions accepted by their owner."""
    for case in chosen:
        own = _own(pins, case)
        form = Form(case.definition, case.digest, Acceptance.OWNER, now, case.verdict)
        pins = pins.having(own.with_forms([(case.key, form)]))
        pins = pins.without_rejected(texts_to_recognise(case.definition, case.verdict))
    return pins


def rejected(pins: Pins, chosen: Collection[Case], now: float) -> Pins:
    """Return the pins with exactly these definitions refused, here and under any other name or server."""
    for case in chosen:
        own = _own(pins, case)
        waiting = own.waiting(case.key, case.digest)
        is_served = waiting is not None and waiting.is_text_only
        held = HeldForm(case.definition, case.digest, Because.CHANGED, now, case.verdict, is_served)
        pins = pins.having(own.rejecting(case.key, held))
        pins = pins.with_rejected(texts_to_recognise(case.definition, case.verdict))
    return pins


def _own(pins: Pins, case: Case) -> ServerPins:
    return pins.of(case.server, case.identity) or ServerPins(case.server, case.identity.what)


def named(known: Sequence[Case], name: str) -> list[Case]:
    """Return the definitions that a name means: whole names first, then own ones; `NAME@HASH` is one form of it.

    A hash goes first: a server that knows what will be approved could call something else exactly that.
    """
    start, _, digest = name.rpartition("@")
    exact = [case for case in _named(known, start) if case.digest.startswith(digest)] if start and digest else []
    return exact or _named(known, name)


def _named(known: Sequence[Case], name: str) -> list[Case]:
    whole = [case for case in known if name in (case.source, escaped(case.source))]
    words = words_of(name)
    return (
        whole
        or [case for case in known if name in case.names]
        or [case for case in known if words in map(words_of, case.names)]
    )
