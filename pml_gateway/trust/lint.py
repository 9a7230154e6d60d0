"""The lint: finds text in definitions that gives orders to the model instead of describing the tool to the user."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import OSA
from rapidfuzz.fuzz import token_sort_ratio

from pml_gateway.index.models import ordinary_words
from pml_gateway.index.text import split_words
from pml_gateway.text import shortened
from pml_gateway.trust.classifier import Classifier, features_of, shipped_classifier
from pml_gateway.trust.lexicon import Kind, Reading, read, spelled
from pml_gateway.trust.passages import MAX_CHARACTERS, Passage, passages_of
from pml_gateway.trust.reveal import RevealedText, reveal
from pml_gateway.trust.rules import RuleMatch, matches, secrets_in
from pml_gateway.trust.verdict import Level, Peer, Reason, RiskClass, Subject, SubjectKind, Verdict
from pml_gateway.types import JsonObject

LEVELS = {Level.ATTACK: 0.84, Level.NOTICE: 0.5}
"""The score from which a verdict has each level; the classifier's last weight was chosen for the second."""

CERTAIN = 0.95
"""The score of findings that need no classifier: hidden characters, orders in code, keys, a schema that opened."""

MAX_REASONS = 12
MAX_SPAN = 240
"""Characters of a reason's text."""

SHOWN_OF_SECRET = 6
SCHEMAS = ("inputSchema", "outputSchema")
_QUOTED = re.compile(r"(?<!\w)([\"'“‘«])\w[^\"'“”‘’«»\n]{1,80}\s[^\"'“”‘’«»\n]{1,80}[\"'”’»]")

SHOUTED = 3
"""Number of words in capitals that make a sentence a shouted one."""

_ORDERS = {
    Kind.SHELL,
    Kind.IGNORE,
    Kind.STEAL,
    Kind.FILE,
    Kind.SECRET,
    Kind.TALK,
    Kind.EVIL,
    Kind.PROMPT,
    Kind.APPROVAL,
}

_STEPS = {Kind.SEND, Kind.READ, Kind.PUT, Kind.CALL, Kind.NOT, Kind.TELL, Kind.ASK, Kind.PREFER, Kind.USER, Kind.MODEL}
MIN_STEPS = 3
_TAKEN = {Kind.SEND, Kind.STEAL, Kind.PUT, Kind.COLLECT, Kind.KEEP, Kind.COPY}
_DATA = {Kind.SECRET, Kind.FILE, Kind.PERSONAL, Kind.TALK, Kind.CONTENT, Kind.OUTSIDE, Kind.LINK, Kind.ADDRESS}

MIN_WORDS = 2
"""Words of a name from which it is no coincidence that another server has it too."""

MIN_DESCRIBED = 8
"""Words of a description from which it is no coincidence that another tool of the name has nearly the same."""

SAME_NAMES = 3
"""Further names that two servers have in common from which they are taken for two versions of one."""

SAME_TEXT = 78
"""Percent of two descriptions in common from which one is taken for a copy of the other."""

MAX_COMPARED = 400
MIN_NAME = 8
_SPELLED = str.maketrans("013457", "oieast", "-_. ")
MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class _ScoredReason:
    """A reason and its score."""

    reason: Reason
    score: float


class Linter:
    """Judge of definitions by their words: offline and deterministic."""

    def __init__(self, classifier: Classifier | None = None) -> None:
        self._classifier = classifier or shipped_classifier()

    def judge(self, subjects: Sequence[Subject], peers: Collection[Peer] = ()) -> list[Verdict]:
        """Return one verdict per subject, in order. CPU work: call it in a thread."""
        neighbours = _OtherServers(subjects, peers)
        return [self._verdict(subject, neighbours) for subject in subjects]

    def _verdict(self, subject: Subject, neighbours: _OtherServers) -> Verdict:
        found = [*self._said(subject, neighbours), *_imitated_names(subject, neighbours)]
        score = max((each.score for each in found), default=0.0)
        level = next((level for level, least in LEVELS.items() if score >= least), None)
        reasons = dict.fromkeys(
            Reason(each.reason.risk_class, each.reason.where, _shown(each.reason.text))
            for each in sorted(found, key=lambda each: -each.score)
            if level is not None and each.score >= LEVELS[level]
        )
        return Verdict(level, round(score, 4), tuple(reasons)[:MAX_REASONS])

    def _said(self, subject: Subject, neighbours: _OtherServers) -> Iterator[_ScoredReason]:
        passages, is_whole = passages_of(subject.definition)
        strangers, own = neighbours.names(subject.server), neighbours.own(subject.server) | own_names(passages)
        about = traits_of(subject.definition)
        known = known_of(subject.before) if subject.before is not None else frozenset()
        is_change = subject.before is not None
        if not is_whole:
            limit = f"more than {MAX_CHARACTERS:,} characters; the rest was not read"
            yield _ScoredReason(Reason(RiskClass.OBFUSCATED_TEXT, "", limit), CERTAIN)
        for passage in passages:
            if passage.text in known:
                continue
            revealed = reveal(passage.text)
            for hidden in revealed.hidden:
                text = f"{hidden.kind}: {hidden.text}"
                yield from _findings(passage, RiskClass.OBFUSCATED_TEXT, text, CERTAIN, is_change)
            for secret in secrets_in(revealed.plain):
                shown = f"{secret[:SHOWN_OF_SECRET]}…"
                yield from _findings(passage, RiskClass.EMBEDDED_SECRET, shown, CERTAIN, is_change)
            for sentence in sentences_of(passage, revealed, known, strangers, own, about):
                yield from self._of_sentence(sentence, is_change)

    def _of_sentence(self, sentence: Sentence, is_change: bool) -> Iterator[_ScoredReason]:
        is_encoded = sentence.is_encoded
        is_order = is_encoded and _is_order(sentence.letters)
        bonus = max((match.rule.bonus for match in sentence.matches), default=0.0)
        features = sentence.features()
        score = CERTAIN if is_order or (bonus and not features) else self._classifier.score(features, bonus)
        for match in sentence.matches:
            span = sentence.span(match.start, match.end)
            yield from _findings(sentence.passage, match.rule.risk_class, span, score, is_change, is_encoded=is_encoded)
        found = _class_of(sentence.letters, sentence.matches)
        yield from _findings(sentence.passage, found, sentence.text, score, is_change, is_encoded=is_encoded)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a passage, or of what an encoded part of it says: the unit that is judged."""

    passage: Passage
    revealed: RevealedText
    source: str
    reading: Reading
    start: int
    end: int
    matches: tuple[RuleMatch, ...]
    about: tuple[str, ...] = ()
    """Traits of the whole definition, for the classifier."""

    @property
    def text(self) -> str:
        """Return the text of the sentence."""
        return self.span(self.start, self.end)

    @property
    def letters(self) -> str:
        """Return the kinds of the words, one letter per word."""
        return self.reading.letters[self.start : self.end]

    @property
    def is_encoded(self) -> bool:
        """Return True if the sentence was decoded from another text."""
        return self.source is not self.revealed.plain

    def span(self, start: int, end: int) -> str:
        """Return the text between two words of the reading."""
        return self.source[self.reading.starts[start] : self.reading.ends[end - 1]]

    def features(self) -> set[int]:
        """Return the classifier's features; none for names of tools, which are too short."""
        if self.passage.is_name and not self.passage.where.startswith(SCHEMAS):
            return set()
        return features_of(self.reading, self.start, self.end, self.matches, self._traits())

    def _traits(self) -> list[str]:
        found = {
            "data": self.passage.is_data,
            "name": self.passage.is_name,
            "encoded": self.is_encoded,
            "hidden": bool(self.revealed.hidden),
            "quoted": _QUOTED.search(self.text) is not None,
            "shouted": sum(word.isupper() and len(word) > 2 for word in self.text.split()) >= SHOUTED,
        }
        return [*self.about, *(trait for trait, is_so in found.items() if is_so)]


def sentences_of(
    passage: Passage,
    revealed: RevealedText,
    known: Collection[str] = (),
    strangers: Collection[str] = (),
    own: Collection[str] = (),
    about: tuple[str, ...] = (),
) -> Iterator[Sentence]:
    """Yield the sentences of a passage that are not `known`, with the rules that fit them."""
    for source in (revealed.plain, *revealed.decoded):
        reading = read(source, strangers, own)
        fitting = list(matches(reading))
        for start, end in reading.sentences():
            if not known or _normal(reading, start, end) not in known:
                within = [match for match in fitting if start <= match.start < end]
                here = tuple(match for match in within if not match.is_excused)
                is_excused = any(match.is_excused for match in within)
                here_about = (*about, "excused") if is_excused else about
                yield Sentence(passage, revealed, source, reading, start, end, here, here_about)


def own_names(passages: Iterable[Passage]) -> frozenset[str]:
    """Return the names in a definition, those of its parameters among them, as they are compared."""
    return frozenset(spelled(passage.text[:MAX_NAME]) for passage in passages if passage.is_name)


def traits_of(definition: JsonObject) -> tuple[str, ...]:
    """Return traits of the whole definition that change how its sentences are judged: scanners name attacks."""
    described = str(definition.get("description", ""))[:MAX_COMPARED]
    reading = read(f"{split_words(_name_of(definition)[:MAX_NAME])}. {described}")
    first = "|".join(reading.letters.split("|")[:2])
    return ("inspects",) if Kind.EXAMPLE.value in first or Kind.SAFETY.value in first else ()


def _normal(reading: Reading, start: int, end: int) -> str:
    """Return a sentence in the normal form in which sentences are compared."""
    return " ".join(reading.words[start:end])


def known_of(definition: JsonObject) -> frozenset[str]:
    """Return the texts and sentences of a definition that was accepted."""
    known: set[str] = set()
    for passage in passages_of(definition)[0]:
        known.add(passage.text)
        reading = read(reveal(passage.text).plain)
        known.update(_normal(reading, start, end) for start, end in reading.sentences())
    return frozenset(known)


def _is_order(letters: str) -> bool:
    """Return True if decoded text gives orders, unlike encoded settings and samples."""
    has = set(letters)
    steps = len(has & _STEPS)
    return Kind.SHELL in has or (bool(has & _ORDERS) and steps > 0) or steps >= MIN_STEPS


_DATA |= {Kind.IDENTITY, Kind.EVIL, Kind.MESSAGE}


def _class_of(letters: str, here: Sequence[RuleMatch]) -> RiskClass:
    """Return the class of a sentence that only the classifier flags: that of the nearest rule, else by its words."""
    if here:
        return here[0].rule.risk_class
    has = set(letters)
    if has & {Kind.ASK, Kind.MUST} and has & {Kind.SECRET, Kind.PERSONAL} and Kind.USER in has:
        return RiskClass.CREDENTIAL_REQUEST
    if has & _TAKEN and has & _DATA:
        return RiskClass.DATA_EXFILTRATION
    if has & {Kind.NAME, Kind.PEER} and has & {Kind.WHENEVER, Kind.BEFORE, Kind.CHANGE, Kind.INSTEAD}:
        return RiskClass.TOOL_SHADOWING
    if has & {Kind.PREFER, Kind.OTHER} and has & {Kind.TOOL, Kind.CALL}:
        return RiskClass.PREFERENCE_MANIPULATION
    if has & {Kind.APPROVAL, Kind.ADMIN, Kind.SAFETY, Kind.SHELL}:
        return RiskClass.PRIVILEGE_ESCALATION
    return RiskClass.HIDDEN_INSTRUCTION


def _findings(
    passage: Passage, risk_class: RiskClass, text: str, score: float, is_change: bool, *, is_encoded: bool = False
) -> Iterator[_ScoredReason]:
    """Yield a finding with its class, and with the classes for its passage and for changed definitions."""
    classes = [risk_class]
    if is_encoded:
        classes.append(RiskClass.OBFUSCATED_TEXT)
    if passage.where.startswith(SCHEMAS) and risk_class is not RiskClass.EMBEDDED_SECRET:
        classes.append(RiskClass.SCHEMA_POISONING)
    if is_change:
        classes.append(RiskClass.RUG_PULL)
    for each in dict.fromkeys(classes):
        yield _ScoredReason(Reason(each, passage.where, text), score)


class _OtherServers:
    """Tools of other servers: names that a text may mention, and tools with similar names."""

    def __init__(self, subjects: Sequence[Subject], peers: Collection[Peer]) -> None:
        self._own: defaultdict[str, set[str]] = defaultdict(set)
        for subject in subjects:
            self._own[subject.server].add(_name_of(subject.definition).lower())
        self._by_spelling: defaultdict[str, list[Peer]] = defaultdict(list)
        for peer in peers:
            self._own[peer.server].add(peer.name.lower())
            for spelling in _spellings(peer.name):
                self._by_spelling[spelling].append(peer)
        self._telling = frozenset(peer.name.lower() for peer in peers if _words(peer.name) > 1)
        self._names: dict[str, frozenset[str]] = {}
        self._spelled: dict[str, frozenset[str]] = {}

    def names(self, server: str) -> frozenset[str]:
        """Return names of other servers' tools, except common words and the server's own names."""
        if server not in self._names:
            self._names[server] = self._telling - self._own[server]
        return self._names[server]

    def own(self, server: str) -> frozenset[str]:
        """Return the names of a server's own tools, as they are compared."""
        if server not in self._spelled:
            self._spelled[server] = frozenset(map(spelled, self._own[server]))
        return self._spelled[server]

    def are_alike(self, server: str, other: str) -> bool:
        """Return True if two servers look like two versions of one."""
        return len(self._own[server] & self._own[other]) > SAME_NAMES

    def alike(self, server: str, name: str) -> list[Peer]:
        """Return other servers' tools with this name, or with one that is easily confused with it."""
        found = {
            peer: None for spelling in _spellings(name) for peer in self._by_spelling[spelling] if peer.server != server
        }
        return [
            peer
            for peer in found
            if peer.name.lower() == name.lower()
            or (peer.name.lower() not in self._own[server] and _resembles(name, peer.name))
        ]


def _imitated_names(subject: Subject, neighbours: _OtherServers) -> Iterator[_ScoredReason]:
    """Yield a name that imitates another server's tool; equal names alone are often chance, so descriptions count."""
    name = _name_of(subject.definition)
    is_known = subject.before is not None and subject.before.get("name") == name
    if subject.kind is not SubjectKind.TOOL or not name or is_known:
        return
    if not name.isascii() and re.search("[A-Za-z]", name) and reveal(name).plain.isascii():
        yield _ScoredReason(Reason(RiskClass.OBFUSCATED_TEXT, "name", f"look-alike letters: {name!a}"), CERTAIN)
    described = str(subject.definition.get("description", ""))
    for peer in neighbours.alike(subject.server, name):
        if peer.name.lower() == name.lower():
            says_enough = _words(name) >= MIN_WORDS and len(described.split()) >= MIN_DESCRIBED
            is_copy = says_enough and _likeness(described, peer.description) >= SAME_TEXT
            # Word for word the same is the same server twice, and so is one with several of the names.
            if not is_copy or described == peer.description or neighbours.are_alike(subject.server, peer.server):
                continue
        yield _ScoredReason(
            Reason(RiskClass.TOOL_SHADOWING, "name", f"{name} ({peer.server} has {peer.name})"), CERTAIN
        )


def _resembles(name: str, other: str) -> bool:
    mine, theirs = name.lower().translate(_SPELLED), other.lower().translate(_SPELLED)
    if {mine[:3], theirs[:3]} == {"get", "set"}:
        return False
    if mine == theirs:
        return name.lower() != other.lower() and any(character.isdigit() for character in name + other)
    if min(len(mine), len(theirs)) < MIN_NAME or abs(len(mine) - len(theirs)) > 1 or len(mine) > MAX_COMPARED:
        return False
    if mine.rstrip("s") == theirs.rstrip("s") or name[-1:].isdigit() or other[-1:].isdigit():
        return False
    # One letter, or two that changed places.
    return OSA.distance(mine, theirs, score_cutoff=1) <= 1 and not _differ_by_a_word(name, other)


def _differ_by_a_word(name: str, other: str) -> bool:
    """Return True if both names have an ordinary word where they differ: `search_nodes` is not `search_notes`."""
    mine, theirs = (split_words(each).lower().split() for each in (name, other))
    differing = {word for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1] for word in pair}
    return len(mine) == len(theirs) and differing <= ordinary_words()


def _spellings(name: str) -> Iterator[str]:
    """Yield a name without separators and look-alike digits, then with one letter left out: equal for near names."""
    spelled = name[:MAX_COMPARED].lower().translate(_SPELLED)
    yield spelled
    if MIN_NAME <= len(spelled) <= MAX_NAME:
        yield from (spelled[:at] + spelled[at + 1 :] for at in range(len(spelled)))


def _name_of(definition: JsonObject) -> str:
    name = definition.get("name", "")
    return name if isinstance(name, str) else ""


def _words(name: str) -> int:
    return len([part for part in name.replace("-", "_").split("_") if part])


def _likeness(one: str, other: str) -> float:
    return token_sort_ratio(one[:MAX_COMPARED].lower(), other[:MAX_COMPARED].lower())


def _shown(text: str) -> str:
    """One line of at most MAX_SPAN characters without anything that a terminal would obey or hide."""
    line = " ".join(text.split())
    return shortened("".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in line), MAX_SPAN)
