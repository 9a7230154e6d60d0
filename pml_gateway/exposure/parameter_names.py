"""Names of arguments that a tool does not declare, and the parameters that they can only stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from rapidfuzz.distance import OSA

from pml_gateway.exposure import name_words
from pml_gateway.exposure.grouping import loosely
from pml_gateway.exposure.name_forms import (
    BOUNDED,
    GENERIC,
    KINDS,
    Words,
    alternatives,
    are_opposed,
    are_synonyms,
    expanded,
    forms_of,
    is_known_word,
    is_unit,
    known_units,
    opposites,
    plural_of_unit,
    rows_of,
    singular,
    unit_in,
    unit_of,
)
from pml_gateway.exposure.parameter_facts import (
    ARTICLE,
    EXAMPLES,
    MAX_DESCRIPTION,
    RELATION,
    SHOWN_KINDS,
    UNKNOWN,
    is_number,
    is_of_kind,
    looks_like,
    looks_like_id,
    mentions,
    names_told_by,
    text_of,
)
from pml_gateway.text import nearest, words_of
from pml_gateway.types import JsonObject

MAX_PARAMETERS = 200
"""Parameters of one object that a name is compared with."""

MIN_SLIP = 5
"""Letters of a word in which a slip is seen: one letter turns shorter ones into others."""

SPELLED_LIKE = 0.75
"""Share of letters in common from which a hint names a parameter that is spelled alike."""


MAX_NEAR = 3
"""Parameters that a hint names."""

_FILLERS = frozenset(name_words.FILLERS.split())
_BOOLEAN_FILLERS = frozenset(name_words.BOOLEAN_FILLERS.split())
_COUNTS = frozenset(name_words.COUNTS.split())
_LENGTHS = frozenset(name_words.LENGTHS.split())
_CONTENTS = frozenset(name_words.CONTENTS.split())
_STARTS = frozenset(name_words.STARTS.split())
_QUALIFIERS = frozenset(name_words.QUALIFIERS.split())
_BOUNDS = _COUNTS | {"maximum", "minimum"}

UNSAID_UNIT = "a unit that its description does not say"


@dataclass(frozen=True, slots=True)
class ToolSubject:
    """The subject of a tool: words that its parameters repeat or leave out, and its description."""

    words: frozenset[str] = frozenset()
    description: str = ""
    is_destructive: bool = False

    def within(self, name: str) -> ToolSubject:
        """Return the subject of an object that a parameter of this name holds."""
        return ToolSubject(self.words | frozenset(forms_of(name)[0]), self.description, self.is_destructive)


def subject_of(name: str, description: str = "", *, is_destructive: bool = False) -> ToolSubject:
    """Return the subject of a tool."""
    words = frozenset(forms_of(name)[0])
    # A direction in the name of a tool says nothing of its parameters.
    is_destructive = is_destructive or not words.isdisjoint(name_words.REMOVING.split())
    return ToolSubject(words - opposites().keys(), description[:MAX_DESCRIPTION].casefold(), is_destructive)


@dataclass(frozen=True, slots=True)
class NameReading:
    """The parameter that a name can only stand for, or those that it may stand for.

    `other_values` are parameters that need another value than the given one, each with the unit of that value if the
    name has another unit or none, else with an empty text. `must_stay` is True if leaving the name out may destroy more
    than was meant.
    """

    target: str | None = None
    near: tuple[str, ...] = ()
    must_stay: bool = False
    other_values: Mapping[str, str] = field(default_factory=dict)


class Names:
    """The declared names of one object, and the readings of others.

    Args:
        schema: of the object.
        given: the names in the arguments.
        subject: of the tool.
        admits: returns True if the schema of a parameter admits a value, in whatever spelling.
    """

    def __init__(
        self,
        schema: JsonObject,
        given: Collection[str],
        subject: ToolSubject,
        admits: Callable[[Any, Any], bool] = lambda schema, value: True,
    ) -> None:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        self._known = {name: known[name] for name in list(known)[:MAX_PARAMETERS]}
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        self.missing = [name for name in known if name in needed and name not in given]
        self._given, self._subject, self._admits = given, subject, admits
        self._is_plural = False

    def read(self, undeclared: Mapping[str, Any]) -> dict[str, NameReading]:
        """Return the readings of undeclared names; those that would be the same parameter are not read."""
        readings = {name: self._read(name, value) for name, value in undeclared.items()}
        targets = [reading.target for reading in readings.values()]
        for name, reading in readings.items():
            if reading.target is not None and targets.count(reading.target) > 1:
                readings[name] = NameReading(near=(reading.target,))
        if not self._subject.is_destructive:
            self._settle(readings, undeclared)
        return readings

    def _settle(self, readings: dict[str, NameReading], undeclared: Mapping[str, Any]) -> None:
        """Read names for which the others leave one parameter only."""
        while True:
            taken = {reading.target for reading in readings.values()} | set(self._given)
            free = [target for target in self._known if target not in taken]
            left = [
                name for name, each in readings.items() if each.target is None and not any(each.other_values.values())
            ]
            choices = {name: self._fitting(name, undeclared[name], free, len(left) == 1) for name in left}
            times = Counter(target for targets in choices.values() for target in targets)
            found = {name: targets[0] for name, targets in choices.items() if len(targets) == 1}
            found = {name: target for name, target in found.items() if times[target] == 1}
            if not found:
                return
            readings |= {name: NameReading(target) for name, target in found.items()}

    def _fitting(self, name: str, value: Any, free: Sequence[str], is_alone: bool) -> list[str]:
        """Return the free parameters that a name may stand for; none if what speaks for the only one is too weak."""
        admitting = [target for target in free if self._admits(self._known[target], value)]
        needed = [each for each in self.missing if each in free]
        if is_alone and len(needed) == 1 and needed[0] in admitting:
            found = {target: self._compared(name, value, target) for target in self._known}
            if (self._heads(found) == needed and found[needed[0]].is_part) or self._is_near(name, value, needed[0]):
                return needed
        fitting = [target for target in admitting if self._may_be(name, value, target)]
        if len(fitting) != 1:
            return fitting
        [target] = fitting
        is_needed = target in needed
        if (is_needed or not self._is_taken(name)) and self._is_enough(name, value, target, admitting, is_needed):
            return fitting
        return []

    def _is_taken(self, name: str) -> bool:
        """Return True if a name says the same as a parameter that has a value."""
        return any(self._compared(name, UNKNOWN, target).is_same for target in self._known if target in self._given)

    def _may_be(self, name: str, value: Any, target: str) -> bool:
        """Return True if a word of a name, or its place beside another, speaks for a parameter and nothing against."""
        asked, declared = forms_of(name)[0], forms_of(target)[0]
        opposed = any(
            are_opposed(one, other) or other in alternatives().get(one, ())
            for form in forms_of(name)
            for one in form
            for said in forms_of(target)
            for other in said
        )
        if unit_of(name) or unit_of(target):
            return False
        if not all(word not in SHOWN_KINDS or looks_like(word, value) for word in declared):
            return False
        says = self._is_part(asked, declared) or self._is_told(asked, target) or _are_contents(asked, declared)
        return (says and not opposed) or self._is_other_half(asked, target) or self._is_start(asked, target)

    def _is_part(self, asked: Words, declared: Words) -> bool:
        """Return True if every word of a name is one of a longer name."""
        twins = [
            next((other for other in declared if word == other or are_synonyms(word, other)), None) for word in asked
        ]
        if None in twins or all(word in KINDS or word in GENERIC or word in _FILLERS for word in asked):
            return False
        return all(word in twins or self._is_of_subject(word) or _may_narrow(word) for word in declared)

    def _is_told(self, asked: Words, target: str) -> bool:
        """Return True if a description says that a parameter, or an alternative for it, is what a name says."""
        words = [word for word in asked if word not in _FILLERS and word not in _COUNTS]
        is_side = len(forms_of(target)[0]) > 1 and self._has_opposite(forms_of(target)[0])
        if not words or is_side or any(word in KINDS for word in words):
            return False
        told = EXAMPLES.split(text_of(self._known[target]), maxsplit=1)[0]
        heads = (RELATION.split(ARTICLE.sub("", each, count=1), maxsplit=1)[0] for each in told.split(" or "))
        return any(all(mentions(head, word) for word in words) for head in heads)

    def _is_other_half(self, asked: Words, target: str) -> bool:
        """Return True for `remote_port` if the only other port is `local_port`."""
        declared = forms_of(target)[0]
        for word in asked:
            rest = sorted(each for each in asked if each != word)
            kin = [
                each
                for each in self._known
                if set(rest) < set(forms_of(each)[0]) and len(forms_of(each)[0]) == len(asked)
            ]
            opposite = [each for each in kin if opposites().get(word, frozenset()).intersection(forms_of(each)[0])]
            if rest and len(kin) == 2 and len(opposite) == 1 and target in kin and target not in opposite:
                return not any(each in opposites().get(word, ()) for each in declared)
        return False

    def _is_start(self, asked: Words, target: str) -> bool:
        """Return True for `from` and `base_branch` of a tool for branches, if no parameter is where something ends."""
        side, *rest = forms_of(target)[0] or ("",)
        if (
            len(asked) != 1
            or not rest
            or not {asked[0], side} <= _STARTS
            or not all(self._is_of_subject(word) for word in rest)
        ):
            return False
        return not self._has_opposite(_STARTS)

    def _is_enough(self, name: str, value: Any, target: str, admitting: Sequence[str], is_needed: bool) -> bool:
        """Return True if what speaks for a parameter suffices: the less it is needed or typical, the more."""
        asked, declared = forms_of(name)[0], forms_of(target)[0]
        schema = self._known[target]
        is_text = value is UNKNOWN or isinstance(value, str | bool)
        is_only = not is_text and admitting == [target]
        if self._is_other_half(asked, target) or self._is_start(asked, target) or "enum" in schema:
            return True
        if self._is_part(asked, declared):
            has_head = asked[-1] == declared[-1] or are_synonyms(asked[-1], declared[-1])
            words = [word for word in asked if word not in KINDS and word not in GENERIC]
            if has_head:
                return is_needed or is_only or (len(words) > 1 and len(declared) == len(asked) + 1)
            ends = words_of(target)[-1]
            is_counted = not isinstance(value, int | float) or (
                singular(ends) != ends and asked[0] not in alternatives()
            )
            return (is_only and is_counted) or (is_needed and declared[-1] in GENERIC)
        if self._is_told(asked, target):
            return is_needed or is_only or (not is_text and len(asked) > 1)
        return is_needed

    def _has_opposite(self, words: Collection[str]) -> bool:
        """Return True if a parameter says the other side of a word."""
        others = {other for word in words for other in opposites().get(word, ())}
        return any(others.intersection(form) for each in self._known for form in forms_of(each))

    @staticmethod
    def _is_near(name: str, value: Any, target: str) -> bool:
        """Return True if a name may stand for the only parameter that is missing: `location` for `city`."""
        is_text = looks_like("name", value) and not looks_like_id(value)
        return is_text and (*forms_of(name)[-1], *forms_of(target)[-1]) in _near()

    def _read(self, name: str, value: Any) -> NameReading:
        same = [target for target in self._known if loosely(target) == loosely(name)]
        if same:
            return (
                NameReading(same[0]) if len(same) == 1 and same[0] not in self._given else NameReading(near=tuple(same))
            )
        self._is_plural = any(singular(word) != word for word in words_of(name)[-1:])
        found = {target: self._compared(name, value, target) for target in self._known}
        units = self._other_units(name, value, found)
        levels = (_Match.is_literal_name, _Match.is_name, _Match.is_description)
        for is_of_level in levels[:2] if self._subject.is_destructive else levels:
            equal = [target for target, match in found.items() if is_of_level(match)]
            if len(equal) == 1 and equal[0] not in units:
                rivals = self._rivals(name, value, equal[0], found)
                return NameReading(near=(*rivals[:MAX_NEAR], *equal)) if rivals else self._chosen(equal, value)
            if len(equal) > 1:
                return NameReading(near=tuple(equal[:MAX_NEAR]))
        if units:
            return NameReading(near=tuple(units)[:MAX_NEAR], other_values=units)
        likely = [] if self._subject.is_destructive else self._likely(name, found)
        if likely:
            return self._chosen(likely, value)
        return self._hinted(name, value, found)

    def _rivals(self, name: str, value: Any, target: str, found: Mapping[str, _Match]) -> list[str]:
        """Return other parameters that the name is a part of, if it is not certain that the target is the one."""
        match = found[target]
        is_shown = all(word in SHOWN_KINDS and word != "id" for word in match.added)
        is_own = forms_of(name)[0][-1] in KINDS and all(self._is_of_subject(word) for word in match.added)
        if match.is_literal and (is_shown or is_own):
            return []
        others = [each for each, other in found.items() if each != target and other.has_all]
        others = [each for each in others if not any(word in opposites() for word in found[each].added)]
        return [each for each in others if self._admits(self._known[each], value)]

    def _chosen(self, targets: Sequence[str], value: Any) -> NameReading:
        free = len(targets) == 1 and targets[0] not in self._given and self._admits(self._known[targets[0]], value)
        return NameReading(targets[0]) if free else NameReading(near=tuple(targets[:MAX_NEAR]))

    def _hinted(self, name: str, value: Any, found: Mapping[str, _Match]) -> NameReading:
        ranked = sorted((target for target in found if found[target].score), key=lambda each: -found[each].score)
        ranked = [each for each in ranked if found[each].is_named or self._admits(self._known[each], value)]
        missing = [each for each in self.missing if not set(forms_of(each)[0]) <= _CONTENTS]
        if set(forms_of(name)[0]) <= KINDS and len(missing) > 1:
            return NameReading(near=tuple(missing[:MAX_NEAR]), other_values=dict.fromkeys(missing[:MAX_NEAR], ""))
        near = tuple(each for each in ranked if each not in self._given)[:MAX_NEAR] or self._spelled_like(name)
        if near:
            kinds = {each: "" for each in near if found[each].is_of_other_kind}
            is_whole = len(near) > 1 and all(each in self.missing for each in near)
            return NameReading(
                near=near, other_values=dict.fromkeys(near, "") if is_whole or len(kinds) == len(near) else {}
            )
        # A switch the other way round says the same as its opposite.
        kinds_of = (alternatives(), opposites()) if isinstance(value, bool) else (alternatives(),)
        others = {other for word in forms_of(name)[0] for table in kinds_of for other in table.get(word, ())}
        free = [each for each in self._known if each not in self._given]
        instead = [each for each in free if others.intersection(forms_of(each)[0])][:MAX_NEAR]
        may_mean = not isinstance(value, bool) and any(self._admits(self._known[each], value) for each in free)
        words = [expanded(word) for word in words_of(name)]
        is_side = any(word in opposites() for word in words) and not self._has_opposite(words)
        must_stay = (self._subject.is_destructive or is_side) and may_mean
        return NameReading(near=tuple(instead), must_stay=must_stay, other_values=dict.fromkeys(instead, ""))

    def _spelled_like(self, name: str) -> tuple[str, ...]:
        free = [each for each in self._known if each not in self._given and len(each) >= MIN_SLIP]
        near = nearest(name, free, likeness=SPELLED_LIKE)
        opposed = any(are_opposed(a, b) for each in near for a in forms_of(name)[0] for b in forms_of(each)[0])
        return () if opposed else tuple(near)

    def _likely(self, name: str, found: Mapping[str, _Match]) -> list[str]:
        """Return the parameter that admits the value as one of few, or is a slip away."""
        heads = self._heads(found)
        if len(heads) == 1 and found[heads[0]].is_part and "enum" in self._known[heads[0]]:
            return heads
        slips = [target for target in self._known if _is_slip(name, target)]
        return slips if len(slips) == 1 else []

    def _heads(self, found: Mapping[str, _Match]) -> list[str]:
        return [target for target, match in found.items() if match.has_head]

    def _other_units(self, name: str, value: Any, found: dict[str, _Match]) -> dict[str, str]:
        """Return the parameters of another unit, or of one that the name does not say; mark those of the same."""
        unit = unit_of(name)
        if unit is not None and unit[0] == "text" and (isinstance(value, bool) or not isinstance(value, int | float)):
            unit = None
        bounds = {word for word in forms_of(name)[0] if word in _BOUNDS}
        says_only_that = unit is not None and all(is_unit(word) or word in _BOUNDS for word in forms_of(name)[0])
        units: dict[str, str] = {}
        for target, match in found.items():
            own = unit_of(target)
            if unit is not None and own is None:
                own = unit_in(text_of(self._known[target]), unit)
            if own == unit:
                if says_only_that and self._is_length(target, bounds):
                    found[target] = replace(match, is_same=True, score=1)
            elif own is None:
                units |= {target: UNSAID_UNIT} if match.score else {}
            elif match.score or (unit is not None and own[0] == unit[0]):
                units[target] = plural_of_unit(own[1])
        return units if not any(match.is_same and target not in units for target, match in found.items()) else {}

    def _is_length(self, target: str, bounds: Collection[str]) -> bool:
        """Return True if a parameter says how much of a unit, and nothing else of it but these bounds."""
        words = [word for word in forms_of(target)[0] if word not in _COUNTS and not is_unit(word)]
        words = [word for word in words if word not in bounds]
        return is_number(self._known[target]) and all(word in _LENGTHS for word in words)

    def _compared(self, name: str, value: Any, target: str) -> _Match:
        schema = self._known[target] if isinstance(self._known[target], dict) else {}
        text = text_of(schema)
        names = [
            self._match(asked, declared, target, schema, text, value)
            for asked, is_limit in self._readings_of(name)
            for declared, is_other_limit in self._readings_of(target)
            if not (is_limit and is_other_limit)
        ]
        best = max(names, key=lambda each: (each.is_same, each.is_literal, each.score))
        if best.is_named or any(are_opposed(one, other) for one in forms_of(name)[0] for other in forms_of(target)[0]):
            return best
        sides = [word for word in forms_of(target)[0] if word in opposites()]
        for said in names_told_by(text, target):
            for asked in forms_of(name):
                match = self._match(asked, said, target, schema, text, value)
                is_it = match.is_same and match.has_all and all(word in KINDS for word in match.added)
                if is_it and all(side in said for side in sides):
                    return replace(best, is_described=True, score=0.5)
        return best

    def _readings_of(self, name: str) -> Iterator[tuple[Words, bool]]:
        """Yield the words of a name; and for `max_emails` of a tool for emails that it is its limit."""
        forms = forms_of(name)
        yield from ((words, False) for words in forms)
        first, *rest = forms[0] or ("",)
        if (first == "maximum" or (first == "count" and rest)) and all(self._is_of_subject(word) for word in rest):
            yield ("limit",), True

    def _match(self, asked: Words, declared: Words, target: str, schema: JsonObject, text: str, value: Any) -> _Match:
        left, pairs = list(declared), 0
        extra: list[str] = []
        literal = True
        for word in asked:
            twin = word if word in left else next((each for each in left if are_synonyms(word, each)), None)
            if twin is None:
                extra.append(word)
                continue
            left.remove(twin)
            pairs += word not in _FILLERS or len(asked) == 1
            literal = literal and twin == word
        if not pairs:
            return self._of_subject(asked, declared, text, value)
        is_opposed = any(are_opposed(one, other) for one in extra for other in declared)
        is_opposed = is_opposed or any(are_opposed(one, other) for one in left for other in asked)
        of_two_kinds = any(word in KINDS for word in extra) and any(word in KINDS for word in left)
        matched = set(asked) - set(extra)
        lacks_kind = any(word in SHOWN_KINDS and not looks_like(word, value) for word in left)
        is_same = not (left and extra)
        is_same = is_same and all(self._may_lack(word, declared, schema, text, value) for word in extra)
        is_same = is_same and all(self._may_add(word, declared, schema, value) for word in left)
        is_same = is_same and (literal or ("id" not in left and "name" not in extra))
        is_same = is_same or self._is_half(declared, left, extra, target, text, value)
        has_head = asked[-1] == declared[-1] or are_synonyms(asked[-1], declared[-1])
        plain = not (left and extra) and asked[-1] not in KINDS
        plain = plain and all(_is_plain(word) for word in extra)
        plain = plain and all(
            "enum" in schema or (_is_plain(word) and mentions(self._subject.description, word)) for word in left
        )
        return _Match(
            is_named=True,
            is_same=is_same and not is_opposed and not of_two_kinds,
            is_literal=literal,
            has_all=not extra and literal,
            added=tuple(word for word in left if word not in _FILLERS),
            has_head=has_head,
            is_part=has_head and not is_opposed and plain and self._speaks_of(extra, text),
            is_of_other_kind=of_two_kinds or lacks_kind or bool(left and extra and matched <= KINDS | _BOUNDS),
            score=0 if is_opposed else pairs / max(len(asked), len(declared)),
        )

    def _may_go(self, word: str, text: str) -> bool:
        """Return True if a word beside one half of a pair is of what the tool deals with."""
        return word in _FILLERS or (
            word not in SHOWN_KINDS and (self._is_of_subject(word) or self._speaks_of([word], text))
        )

    def _speaks_of(self, words: Sequence[str], text: str) -> bool:
        return all(mentions(text, word) or mentions(self._subject.description, word) for word in words)

    def _of_subject(self, asked: Words, declared: Words, text: str, value: Any) -> _Match:
        """Compare a name that only says of what with one that only says how it is named: `issue` with `number`."""
        if (
            len(asked) == 1
            and len(declared) == 1
            and asked[0] in self._subject.words
            and declared[0] in ("id", "number")
        ):
            is_number = value is UNKNOWN or (isinstance(value, int) and not isinstance(value, bool))
            return _Match(is_same=is_number and not self._subject.is_destructive, score=0.5)
        words = [word for word in asked if word not in _FILLERS]
        told = EXAMPLES.split(text, maxsplit=1)[0]
        is_told = words and all(mentions(told, word) for word in words)
        return (
            _Match(score=0.3) if is_told and not any(are_opposed(a, b) for a in asked for b in declared) else _Match()
        )

    def _may_lack(self, word: str, declared: Words, schema: JsonObject, text: str, value: Any) -> bool:
        """Return True if a word of the given name says nothing that the declared one leaves open."""
        if word in _FILLERS or (isinstance(value, bool) and word in _BOOLEAN_FILLERS) or _is_bound(word, declared):
            return True
        if word in _COUNTS and is_number(schema):
            return True
        if known_units().get(word) is not None:
            return True
        if word in KINDS:
            return is_of_kind(word, declared, schema, text, value)
        return self._is_of_subject(word) or (_is_plain(word) and mentions(text, word))

    def _may_add(self, word: str, declared: Words, schema: JsonObject, value: Any) -> bool:
        """Return True if a word of the declared name says what the value shows, or what the tool deals with."""
        if word in _FILLERS or (isinstance(value, bool) and word in _BOOLEAN_FILLERS) or _is_bound(word, declared):
            return True
        if word in _COUNTS and is_number(schema) and word != declared[-1]:
            return self._is_plural
        if word in KINDS:
            return looks_like(word, value)
        return self._is_of_subject(word)

    def _is_of_subject(self, word: str) -> bool:
        return any(word == each or are_synonyms(word, each) for each in self._subject.words)

    def _is_half(self, declared: Words, left: list[str], extra: list[str], target: str, text: str, value: Any) -> bool:
        """Return True for one half of a pair: `from` for `from_currency` beside `to_currency`, `old_path` for `old`."""
        matched = [word for word in declared if word not in left]
        if (
            len(matched) != 1
            or matched[0] not in opposites()
            or any(word in opposites() for word in extra)
            or (left and extra)
        ):
            return False
        for other in self._known:
            form = forms_of(other)[0]
            opposite = [word for word in form if word in opposites()[matched[0]]]
            if other != target and opposite and sorted(form) == sorted([opposite[0], *left]):
                shown = all(word not in KINDS or looks_like(word, value) for word in left)
                return shown and all(self._may_go(word, text) for word in extra)
        return False


@dataclass(frozen=True, slots=True)
class _Match:
    """The likeness of a name to a declared one, or to the description of that parameter."""

    is_named: bool = False
    is_same: bool = False
    is_literal: bool = False
    is_described: bool = False
    has_all: bool = False
    added: Words = ()
    has_head: bool = False
    is_part: bool = False
    is_of_other_kind: bool = False
    score: float = 0

    def is_literal_name(self) -> bool:
        """Return True if both names have the same words."""
        return self.is_same and self.is_literal

    def is_name(self) -> bool:
        """Return True if both names say the same."""
        return self.is_same

    def is_description(self) -> bool:
        """Return True if the description begins with the name."""
        return self.is_described


def _are_contents(asked: Words, declared: Words) -> bool:
    """Return True if both names only say that something is content."""
    return all(word in _CONTENTS for word in (*asked, *declared))


def _may_narrow(word: str) -> bool:
    """Return True for a word that narrows what others of a name mean to nothing else."""
    return not (
        word in opposites() or word in _QUALIFIERS or word in SHOWN_KINDS or word in _LENGTHS or word in alternatives()
    )


def _is_bound(word: str, declared: Words) -> bool:
    """Return True for the maximum of something that a number without it bounds as well."""
    return word == "maximum" and all(each == word or each in BOUNDED for each in declared)


def _is_plain(word: str) -> bool:
    """Return True for a noun that only narrows what another one says."""
    return not (word in opposites() or word in _QUALIFIERS or word in KINDS or unit_of(word))


def _is_slip(name: str, target: str) -> bool:
    """Return True if one word of a name has a letter too many or too few, or two swapped, and is no other word."""
    asked, declared = words_of(name), words_of(target)
    differing = [(one, other) for one, other in zip(asked, declared, strict=False) if one != other]
    if len(asked) != len(declared) or len(differing) != 1:
        return False
    one, other = differing[0]
    is_swapped = sorted(one) == sorted(other)
    is_near = OSA.distance(one, other) == 1 and (is_swapped or len(one) != len(other))
    is_no_word = not is_known_word(one) and one.isalpha() and min(len(one), len(other)) >= MIN_SLIP
    return is_near and is_no_word and one[0] == other[0] and not are_opposed(singular(one), singular(other))


@cache
def _near() -> frozenset[Words]:
    return frozenset(rows_of(name_words.NEAR))
