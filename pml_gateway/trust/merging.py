"""Merging of pins that two replicas have changed independently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pml_gateway.trust.identity import Key
from pml_gateway.trust.pins import MAX_FORMS, MAX_HELD, Acceptance, Form, HeldForm, Pins, ServerPins


def merged(mine: Pins, theirs: Pins) -> Pins:
    """Merge the forms of both; of each one, the owner's last decision wins, or else the newest state."""
    servers = dict(theirs.servers)
    for key, pins in mine.servers.items():
        other = servers.get(key)
        servers[key] = pins if other is None else _merged_server(pins, other)
    return Pins(servers).with_rejected((*mine.rejected_texts, *theirs.rejected_texts))


@dataclass(frozen=True, slots=True)
class _FormState:
    """A form at one replica: accepted, held or rejected."""

    form: Form | HeldForm
    is_rejected: bool = False

    @property
    def is_by_owner(self) -> bool:
        return self.is_rejected or (isinstance(self.form, Form) and self.form.how is Acceptance.OWNER)

    @property
    def rank(self) -> tuple[bool, float, bool, bool, bool, bool]:
        """Return the sort key: the owner's decisions are higher, then newer states, then stricter ones."""
        form = self.form
        is_held = isinstance(form, HeldForm)
        return self.is_by_owner, form.at, self.is_rejected, is_held, form.verdict is not None, bool(form.definition)


def _merged_server(one: ServerPins, other: ServerPins) -> ServerPins:
    accepted: dict[Key, tuple[Form, ...]] = {}
    held: dict[Key, tuple[HeldForm, ...]] = {}
    rejected: dict[Key, tuple[HeldForm, ...]] = {}
    for key in dict.fromkeys(key for pins in (other, one) for key in (*pins.accepted, *pins.held, *pins.rejected)):
        all_rejected_at = max(_all_rejected_at(one, key), _all_rejected_at(other, key))
        best: dict[str, _FormState] = {}
        for state in (*_states(one, key), *_states(other, key)):
            if isinstance(state.form, Form) and state.form.at <= all_rejected_at:
                continue
            known = best.get(state.form.digest)
            if known is None or state.rank > known.rank:
                best[state.form.digest] = state
        ordered = sorted(best.values(), key=lambda each: each.form.at)
        if forms := tuple(each.form for each in ordered if isinstance(each.form, Form)):
            accepted[key] = forms[-MAX_FORMS:]
        others = [(each.form, each.is_rejected) for each in ordered if isinstance(each.form, HeldForm)]
        if waiting := tuple(form for form, is_rejected in others if not is_rejected):
            held[key] = waiting[-MAX_HELD:]
        if refused := tuple(form for form, is_rejected in others if is_rejected):
            rejected[key] = refused
    return ServerPins(one.server, one.what, accepted, held, rejected)


def _states(pins: ServerPins, key: Key) -> Iterator[_FormState]:
    for form in pins.accepted.get(key, ()):
        yield _FormState(form)
    for held in pins.held.get(key, ()):
        yield _FormState(held)
    for refused in pins.rejected.get(key, ()):
        yield _FormState(refused, is_rejected=True)


def _all_rejected_at(pins: ServerPins, key: Key) -> float:
    """Return when the owner last rejected a definition that has no accepted form: it voids acceptances before; or 0."""
    return max((each.at for each in pins.rejected.get(key, ()) if key not in pins.accepted), default=0.0)
