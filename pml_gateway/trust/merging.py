"""Merging of pins that two replicas have changed without knowing of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pml_gateway.trust.identity import Key
from pml_gateway.trust.pins import MAX_FORMS, MAX_HELD, Acceptance, Form, HeldForm, Pins, ServerPins


def merged(mine: Pins, theirs: Pins) -> Pins:
    """Return pins with all that either has: of each form, the owner's last word, or else the newest standing."""
    servers = dict(theirs.servers)
    for key, pins in mine.servers.items():
        other = servers.get(key)
        servers[key] = pins if other is None else _merged_server(pins, other)
    return Pins(servers).with_rejected((*mine.rejected_texts, *theirs.rejected_texts))


@dataclass(frozen=True, slots=True)
class _Standing:
    """One form as one replica has it."""

    form: Form | HeldForm
    is_rejected: bool = False

    @property
    def is_owners(self) -> bool:
        return self.is_rejected or (isinstance(self.form, Form) and self.form.how is Acceptance.OWNER)

    @property
    def weight(self) -> tuple[bool, float, bool, bool, bool, bool]:
        """Return a value by which standings are compared; of equally old ones the stricter wins."""
        form = self.form
        is_held = isinstance(form, HeldForm)
        return self.is_owners, form.at, self.is_rejected, is_held, form.verdict is not None, bool(form.definition)


def _merged_server(one: ServerPins, other: ServerPins) -> ServerPins:
    accepted: dict[Key, tuple[Form, ...]] = {}
    held: dict[Key, tuple[HeldForm, ...]] = {}
    rejected: dict[Key, tuple[HeldForm, ...]] = {}
    for key in dict.fromkeys(key for pins in (other, one) for key in (*pins.accepted, *pins.held, *pins.rejected)):
        unwanted_until = max(_unwanted_until(one, key), _unwanted_until(other, key))
        best: dict[str, _Standing] = {}
        for standing in (*_standings(one, key), *_standings(other, key)):
            if isinstance(standing.form, Form) and standing.form.at <= unwanted_until:
                continue
            known = best.get(standing.form.digest)
            if known is None or standing.weight > known.weight:
                best[standing.form.digest] = standing
        ordered = sorted(best.values(), key=lambda each: each.form.at)
        if forms := tuple(each.form for each in ordered if isinstance(each.form, Form)):
            accepted[key] = forms[-MAX_FORMS:]
        others = [(each.form, each.is_rejected) for each in ordered if isinstance(each.form, HeldForm)]
        if waiting := tuple(form for form, is_rejected in others if not is_rejected):
            held[key] = waiting[-MAX_HELD:]
        if refused := tuple(form for form, is_rejected in others if is_rejected):
            rejected[key] = refused
    return ServerPins(one.server, one.what, accepted, held, rejected)


def _standings(pins: ServerPins, key: Key) -> Iterator[_Standing]:
    for form in pins.accepted.get(key, ()):
        yield _Standing(form)
    for held in pins.held.get(key, ()):
        yield _Standing(held)
    for refused in pins.rejected.get(key, ()):
        yield _Standing(refused, is_rejected=True)


def _unwanted_until(pins: ServerPins, key: Key) -> float:
    """Return when the owner rejected all forms of a definition: whoever rejects what is served wants none of it."""
    return max((each.at for each in pins.rejected.get(key, ()) if key not in pins.accepted), default=0.0)
