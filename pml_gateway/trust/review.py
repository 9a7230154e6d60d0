"""The owner's review: pending definitions, their differences from accepted ones, and approval or rejection."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.text import escaped, words_of
from pml_gateway.trust.identity import SERVER, Identity, Key, identity_of
from pml_gateway.trust.pins import Acceptance, Form, HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.recognition import texts_to_recognise
from pml_gateway.trust.verdict import SubjectKind, Verdict
from pml_gateway.types import SEPARATORS, JsonObject

Outcome = Literal["approved", "rejected"]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

MAX_COMPARED = 20_000
"""Characters of a text that are compared word by word; a longer one is shown before and after."""

SHOWN_OF_DIGEST = 12
"""Characters by which one form of a definition is named."""

LATELY_DAYS = 7
MAX_CHANGED = 20
"""Changes that `pml trust` shows, and how long."""

_BECAUSE = {
    "changed": "changed",
    "new": "new at a known server",
    "new_server": "came with a new server",
    "returned": "you rejected this text before",
    "unreadable": "nested too deep to be compared",
    "no_attack": "a change without an attack",
    "policy": "served as trust.changes says",
    "owner": "you approved it",
}

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """A difference at one place of a definition: `before` is None if it was added, `after` if it was removed."""

    where: str
    before: str | None
    after: str | None
    is_text: bool = False

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """Return the text in pieces, each marked `+`, `-`, or a blank if it is unchanged."""
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
    """Return the differences of two definitions, in the order of the new one."""
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


WAITING = frozenset({State.HELD, State.FLAGGED})
"""States of definitions that the owner may want to decide about."""

_SEVERAL = {State.HELD: "wait", State.REJECTED: "were rejected"}
"""States in which a name alone does not say which of several forms is meant."""


@dataclass(frozen=True, slots=True)
class Case:
    """A definition under review; `before` is the form that was accepted last."""

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
        """Return `server:name`, with the kind of everything that is not a tool."""
        kind, name = self.key
        if self.key == SERVER:
            return self.server
        return f"{self.server}:{name}" if kind is SubjectKind.TOOL else f"{self.server}:{kind}:{name}"

    @property
    def why(self) -> str:
        """Return the reason for its state in words."""
        return "you rejected it" if self.state is State.REJECTED else _BECAUSE.get(self.because, self.because)

    @property
    def exact(self) -> str:
        """One form of a definition as commands take it, on one line whatever its server calls it."""
        return f"{escaped(self.source)}@{self.digest[:SHOWN_OF_DIGEST]}"

    @property
    def is_waiting(self) -> bool:
        """Return True if the owner may want to decide about it."""
        return self.state in WAITING

    @property
    def changes(self) -> list[Change]:
        """Return the differences from the form accepted last, or the whole definition if there is none."""
        return changes(self.before or {}, self.definition)

    @property
    def names(self) -> set[str]:
        """Return the names by which the owner may refer to the definition."""
        own = self.key[1]
        if self.key == SERVER:
            return {self.server}
        names = {self.source, f"{self.server}:{own}", f"{self.server}__{own}"}
        if not any(separator in own for separator in SEPARATORS):
            # With one, a server could call its own as another's is called.
            names.add(own)
        return names

    def as_json(self) -> JsonObject:
        """Return the case as `--json` prints it."""
        reasons = self.verdict.reasons if self.verdict is not None else ()
        changed = [{"where": each.where, "before": each.before, "after": each.after} for each in self.changes]
        return {
            "server": self.server,
            "kind": self.key[0].value,
            "name": self.key[1],
            "state": self.state.value,
            "because": self.because,
            "since": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            "digest": self.digest,
            "reasons": [each.as_json() for each in reasons],
            "changes": changed if self.before is not None else None,
        }


def cases(pins: Pins, servers: Mapping[str, UpstreamDefinition]) -> list[Case]:
    """Return the pinned definitions of these servers, those that wait for a decision first."""
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
        held = HeldForm(case.definition, case.digest, HoldReason.CHANGED, now, case.verdict, is_served)
        pins = pins.having(own.rejecting(case.key, held))
        pins = pins.with_rejected(texts_to_recognise(case.definition, case.verdict))
    return pins


def _own(pins: Pins, case: Case) -> ServerPins:
    return pins.of(case.server, case.identity) or ServerPins(case.server, case.identity.what)


def named(known: Sequence[Case], name: str) -> list[Case]:
    """Return the definitions that a name refers to: `server:name` first, then own names; `NAME@HASH` is one form.

    Hashes are tried first, since a server could name a tool like the hash of a definition under review.
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


def meant(known: Sequence[Case], name: str) -> Case:
    """Return the definition of this name, that which waits before others.

    Raises:
        UsageError: there is none, or several.
    """
    found = named(known, name)
    sources = [escaped(source) for source in dict.fromkeys(case.source for case in found)]
    if not found:
        raise UsageError(f"no definition {name!r} is pinned", hint="pml trust list --all")
    if len(sources) > 1:
        raise UsageError(f"{name!r} may be {', '.join(sources)}", hint="name one of them")
    alike = [case for case in found if case.state == found[0].state]
    if len(alike) > 1 and found[0].state in _SEVERAL:
        forms = ", ".join(case.exact for case in alike)
        raise UsageError(f"several forms of {sources[0]} {_SEVERAL[found[0].state]}", hint=f"name one of them: {forms}")
    return found[0]


def of_server(known: Sequence[Case], name: str) -> list[Case]:
    """Return what the owner may want to look at of the server of this name, in any spelling."""
    told = [case for case in known if case.is_waiting or case.state is State.CHANGED]
    return [case for case in told if name == case.server] or [
        case for case in told if words_of(name) == words_of(case.server)
    ]


def changed_lately(known: Sequence[Case], now: float) -> list[Case]:
    """Return the newest change of each definition that was served, newest first."""
    since = now - LATELY_DAYS * 86_400
    newest: dict[str, Case] = {}
    for case in sorted(known, key=lambda case: -case.at):
        if case.state is State.CHANGED and case.at >= since:
            newest.setdefault(case.source, case)
    return list(newest.values())[:MAX_CHANGED]


def selected(known: Sequence[Case], names: Sequence[str], server: str | None, outcome: Outcome) -> list[Case]:
    """Return the definitions to decide about: those that are named, or all that wait, of one server or of all.

    Raises:
        UsageError: there is no such definition, or it cannot be approved.
    """
    waiting = [case for case in known if case.is_waiting]
    if server is not None:
        chosen = [case for case in waiting if case.server == server]
        if not chosen:
            raise UsageError(f"nothing of {server!r} waits for your decision", hint="pml trust list")
    else:
        # Who rejects means what is served or waits, and never what was rejected before.
        open_to = [case for case in known if outcome == "approved" or case.state is not State.REJECTED]
        chosen = [meant(open_to, name) for name in names] if names else waiting
    unreadable = [case.source for case in chosen if not case.digest]
    if unreadable and outcome == "approved":
        raise UsageError(f"{unreadable[0]} is nested too deep to be pinned", hint="it is never served")
    return chosen


def decide(file: PinsFile, chosen: Collection[Case], outcome: Outcome, now: float) -> None:
    """Write the owner's decision.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    change = approved if outcome == "approved" else rejected
    try:
        file.change(lambda pins: change(pins, chosen, now))
    except OSError as error:
        raise ConfigurationError(
            f"nothing is {outcome}: {file.path.parent} cannot be written ({error.strerror or error})",
            hint="make the folder writable, and see that the disk is not full",
        ) from error
