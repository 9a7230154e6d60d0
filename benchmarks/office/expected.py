"""Compares the state that a task left behind with the changes that were asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.office.system import Record, Table

Tables = Mapping[str, Table]

_THOUSANDS = re.compile(r"(?<=\d)[,'  ](?=\d{3}(?!\d))")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Has:
    """A text with all of these in it, whatever else, but what is in `without`; of several in a tuple one is enough."""

    parts: tuple[str | tuple[str, ...], ...]
    without: tuple[str, ...]

    def __init__(self, *parts: str | tuple[str, ...], without: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "without", without)

    def fits(self, value: Any) -> bool:
        """Compare without capitals and without separators of thousands."""
        written = _THOUSANDS.sub("", str(value)).casefold()
        choices = [(part,) if isinstance(part, str) else part for part in self.parts]
        held = all(any(choice.casefold() in written for choice in each) for each in choices)
        return held and not any(part.casefold() in written for part in self.without)


@dataclass(frozen=True, slots=True)
class Set:
    """A list of these, in any order."""

    items: tuple[Any, ...]

    def __init__(self, *items: Any) -> None:
        object.__setattr__(self, "items", items)

    def fits(self, value: Any) -> bool:
        """Find another item for each."""
        left = list(value) if isinstance(value, list) else [None]
        for item in self.items:
            match = next((each for each in left if fits(item, each)), None)
            if match is None:
                return False
            left.remove(match)
        return not left


Kind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One record that was added, changed or removed; `fields` are what a task asks for, or the record's own."""

    kind: Kind
    table: str
    id: str | None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def is_met_by(self, made: Change) -> bool:
        """Return True if a change that was made is this one, with no other field changed."""
        if (self.kind, self.table) != (made.kind, made.table) or self.id not in (None, made.id):
            return False
        if self.kind == "changed" and made.fields.keys() != self.fields.keys():
            return False
        return all(fits(wanted, made.fields.get(name)) for name, wanted in self.fields.items())


def added(table: str, /, **fields: Any) -> Change:
    """Ask for a new record with these fields; others are free."""
    return Change("added", table, None, fields)


def changed(table: str, id: str, /, **fields: Any) -> Change:
    """Ask for new values of these fields, and of no others."""
    return Change("changed", table, id, fields)


def removed(table: str, id: str, /) -> Change:
    """Ask for a record to be gone."""
    return Change("removed", table, id)


def fits(wanted: Any, value: Any) -> bool:
    """Return True if a value is what is wanted: equal, or as a matcher has it."""
    if isinstance(wanted, Has | Set):
        return wanted.fits(value)
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(fits(each, value.get(name)) for name, each in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(fits, wanted, value))
    return bool(wanted == value)


def changes(before: Tables, after: Tables) -> list[Change]:
    """All that differs between two states."""
    found: list[Change] = []
    for table in before:
        old, new = before[table], after[table]
        found += [Change("added", table, key, new[key]) for key in new if key not in old]
        found += [Change("removed", table, key, old[key]) for key in old if key not in new]
        for key in old.keys() & new.keys():
            if different := _different(old[key], new[key]):
                found.append(Change("changed", table, key, different))
    return sorted(found, key=lambda each: (each.table, each.kind, str(each.id)))


def faults(wanted: Sequence[Change], made: Sequence[Change], free: Sequence[str] = ()) -> list[str]:
    """What is missing of the changes that were asked for, and what changed beside them.

    Changes of the tables in `free`, or of a field `table:field`, are nobody's business.
    """
    left = [_without(change, free) for change in made if change.table not in free]
    left = [change for change in left if change.kind != "changed" or change.fields]
    missing: list[str] = []
    for want in wanted:
        match = next((change for change in left if want.is_met_by(change)), None)
        if match is None:
            missing.append(f"missing: {_told(want)}")
        else:
            left.remove(match)
    return missing + [f"not asked for: {_told(change)}" for change in left]


def _different(old: Record, new: Record) -> Record:
    return {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _without(change: Change, free: Sequence[str]) -> Change:
    if change.kind != "changed":
        return change
    kept = {name: value for name, value in change.fields.items() if f"{change.table}:{name}" not in free}
    return Change(change.kind, change.table, change.id, kept)


def _told(change: Change) -> str:
    return f"{change.kind} {change.table} {change.id or ''} {dict(change.fields)}"[:_SHOWN]
