"""Selection: how far a list of tools goes for each step of an intent, and the effects that its words allow."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pml_gateway.index.clauses import split_clauses
from pml_gateway.index.text import ToolDocument, lexical_tokens, query_tokens, split_words
from pml_gateway.index.verbs import REMOVE, VERBS, asked_actions, in_one_word, leads, telling_words, word_set
from pml_gateway.index.wording import AFTER_OBJECT

MARGIN, MARGIN_SHARE = 0.16, 0.25
"""Strength by which a tool may fall behind the best one of a step at MARGIN_THRESHOLD, and the share of that one's
strength if it is less: on labelled intents four in five tools beyond them are wrong. A lower threshold allows as much
more as its evidence is lower."""

MARGIN_THRESHOLD = 0.7

MAX_JUDGED = 100
"""Candidates of a step that are judged; no list is longer."""

VERB_WORDS = 5
"""First words of a description that say what a tool does: `Move or rename files`."""

OBJECT_CHARACTERS = 60
"""Beginning of a description that says what a tool acts on: `Removes the database`; the rest tells how."""

_NEGATION = re.compile(
    r"\b(?:do not|don['’]?t|dont|does not|never|not to|no need to|without|instead of|rather than|avoid)\b",
    re.IGNORECASE,
)
"""Words after which a step says what not to do."""

_NEGATED = re.compile(
    r"\b(?:nicht|kein\w*|ohne|jamais|nunca|não|senza|niet|geen|zonder|не|без)\b|不要|别|別に|勿|しないで|ずに|지 마",
    re.IGNORECASE,
)
"""Negations of other languages, where they may stand before or after the verb; a step that has one is dropped whole."""

_MAYBE_NEGATED = re.compile(r"(?<!-)\b(?:ne|n['’]|pas|sans|sin|sem|non|nie)\b(?!-)")
"""Negations of other languages that are words, parts of words or names in English, too (`non-empty`, `NE`, `SIN`)."""

_ENGLISH = re.compile(
    r"\b(?:the|my|our|of|to|with|from|by|and|are|that|find|list|show|get|look|check|search|give|read|open|send)\b",
    re.IGNORECASE,
)
"""Words that show that a step is in English; none of them is a word of a language with such a negation."""

_REMINDER = re.compile(r"\b(?:do not|don['’]?t|never) forget (?:to )?(?=\w)", re.IGNORECASE)
_IT = re.compile(r"\b(?:it|them|ones|that one|this one|these|those)\b(?!\s+(?:is|was|are|were|to be)\b)", re.IGNORECASE)
_REMOVES = re.compile(
    r"\b(?:delet\w*|remov(?:e|es|ed|al|ing)|eras\w+|purg\w+|wip(?:e|es|ed|ing)|uninstall\w*|revok\w+|revocation"
    r"|cancel\w*|discard\w*|destroy\w*|eliminat\w+|trash\w*|unlink\w*|truncat\w+|terminat\w+|prun(?:e|es|ed|ing)"
    r"|forget\w*|go(?:es)? away|expung\w+|scrap|unsubscrib\w*|deregister\w*|unpublish\w*|gets? rid of|tear down"
    r"|take down|throw (?:away|out)|clean(?:ing|ed)? (?:up|out)|clear(?:ing|ed)? out|log ?out|sign ?out|evict\w*"
    r"|lösch\w*|gelöscht\w*|entfern\w*|stornier\w*|widerruf\w*|deinstallier\w*|kündig\w*|verwirf|vernicht\w*|leere"
    r"|supprim\w*|effac\w*|enlev\w*|retir(?:e|er|ez)|annul\w*|révoqu\w*|désinstall\w*|détrui\w*|vide[rz]?"
    r"|elimin\w*|borr(?:a|ar|e|en|o)|suprim\w*|revoc\w*|desinstal\w*|vací\w*|anula\w*|quita(?:r)?"
    r"|apag(?:a|ar|ue)|exclu(?:a|i|ir)|remov(?:a|er)|revog\w*|cancell\w*|rimuov\w*|disinstall\w*|svuot\w*"
    r"|verwijder\w*|wis|annuleer\w*|usuń\w*|skasuj\w*|radera|slett\w*|удал\w*|стер\w*|отмен\w*|очист\w*|sil(?:in)?)\b"
    r"|删除|刪除|移除|清除|清空|取消|撤销|卸载|削除|消去|消して|解除|삭제|제거|취소|지워|지우",
    re.IGNORECASE,
)
_REMOVES_FIRST = word_set("clean cleanup clear close cut drop dump empty flush kill leave reject reset rm strip")
"""Verbs of removal that are as often nouns or adjectives, and count only where a step begins with them, or before a
determiner."""

_REMOVES_WHAT = re.compile(
    rf"\b(?:{'|'.join(sorted(_REMOVES_FIRST))})\s+(?:the|my|our|all|that|this|these|those|every|any|its?|them)\b",
    re.IGNORECASE,
)
_REMOVING_NAMES = word_set(
    "cancel cleanup clear del delete destroy detach disassociate discard drop erase evict flush forget hdel kill lrem"
    " purge remove revoke rm srem terminate trash truncate unassign uninstall unlink wipe xdel zrem"
)
"""Words of names of tools that remove something, though they have no annotations."""

_UNDOING_NAMES = word_set("reset restore revert rollback undo")
"""Words of names of tools that take changes back, which may be asked for as a removal: `throw away my changes`."""

_ENDING_NAMES = word_set("archive close deactivate disable drain logout reject rotate suspend unpublish")
"""Words of names of tools that end something, where their annotations say that they destroy."""

SAME_VERB_GAIN = 0.06
"""Strength that a tool gains in lists by the very verb of the step, in its name or as the first of its description."""

_VALUE = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+\b|\b\d+\b|\b\w*\d[\w-]*\d[\w-]*|[\"'`“«][^\"'`”»]{1,80}[\"'`”»]")
"""Names and numbers of one person, place or thing, which no tool knows."""

_PRONOUNS = word_set("all anything everything it one ones stuff that them things this")
_ANYTHING = _PRONOUNS | word_set("any id item items")
"""Objects that name nothing."""

SPECIFIC_REMOVALS = word_set("cancel evict forget kill revoke terminate unassign uninstall")
"""Verbs of removal that say themselves what kind of thing they act on."""


class Cut(StrEnum):
    """Reason why a list does not show a tool that a search finds."""

    THRESHOLD = "score below the threshold"
    GAP = "far behind better ones"
    EFFECT = "no verb of the intent names its effect"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool for an intent: the score of the step that it serves best, and why it is cut, if it is."""

    position: int
    key: str
    score: float
    cut: Cut | None = None

    @property
    def rank(self) -> tuple[bool, float]:
        """Order of what several steps say of one tool, and of tools: the higher, the better."""
        return self.cut is None, self.score


def wanted_steps(intent: str) -> tuple[str, ...]:
    """Return the steps of an intent, each complete in itself, without those that say what not to do; may be empty."""
    steps: list[str] = []
    named = ""
    reminded = _REMINDER.sub("", intent)
    for step in split_clauses(reminded) or (reminded,):
        if _NEGATED.search(step) or (_MAYBE_NEGATED.search(step) and not _ENGLISH.search(step)):
            continue
        negation = _NEGATION.search(step)
        wanted = step if negation is None else step[: negation.start()].strip(" ,;")
        if words := object_words(wanted, whole=True):
            named = " ".join(words)
        elif named:
            wanted = _IT.sub(named, wanted, count=1)
        if next(telling_words(wanted), ""):
            steps.append(wanted)
    return tuple(steps)


def object_words(step: str, *, whole: bool = False) -> list[str]:
    """Return the words of a step that name what its verb acts on; none if they name nothing, as `it` does.

    If they name a value only, it is what follows: `remove item 12 from my cart`. The `whole` has what follows `of`.
    """
    told = list(telling_words(in_one_word(_VALUE.sub(" ", step))))
    begins = bool(leads(step)) or (bool(told) and told[0] in _REMOVES_FIRST)
    if told[:1] == ["forget"]:
        # What is forgotten is a person or a sentence.
        return []
    ends = AFTER_OBJECT - {"of"} if whole else AFTER_OBJECT
    segments: list[list[str]] = [[]]
    for word in told[1:] if begins else told:
        if word in ends or word == "but":
            segments.append([])
        else:
            segments[-1].append(word)
    for segment in segments[:2]:
        if segment and segment[-1] in _PRONOUNS:
            return []
        words = [word for word in segment if query_tokens(word) and word not in _ANYTHING]
        if words := [word for word in words if not _REMOVES.fullmatch(word)]:
            return words
    return []


def effect_words(document: ToolDocument) -> frozenset[str]:
    """Return the words of a tool's name that say that it removes or ends something."""
    words = frozenset(split_words(document.name).casefold().split())
    return words & (_REMOVING_NAMES | _ENDING_NAMES if document.is_destructive else _REMOVING_NAMES)


def names_effect(step: str, effects: Collection[str]) -> bool:
    """Return True if a verb of a step names one of these effects, or says in any language that something is removed."""
    first = query_tokens(next(telling_words(step), ""))
    return not set(query_tokens(" ".join(effects))).isdisjoint(first) or (
        says_removal(step) and not _REMOVING_NAMES.isdisjoint(effects)
    )


def says_removal(step: str) -> bool:
    """Return True if a verb of a step says in any language that something is removed."""
    first = next(telling_words(step), "")
    return bool(_REMOVES.search(step) or _REMOVES_WHAT.search(step)) or first in _REMOVES_FIRST


def asked_of(step: str) -> int:
    """Return the actions that a step asks for, as bits; 0 if that is uncertain."""
    return asked_actions(step) or (REMOVE if says_removal(step) else 0)


def undoes(document: ToolDocument) -> bool:
    """Return True if the name of a tool says that it takes changes back."""
    return not _UNDOING_NAMES.isdisjoint(split_words(document.name).casefold().split())


def object_of(document: ToolDocument) -> str:
    """Return the words of a tool's name that say what it acts on."""
    no_object = VERBS | _REMOVING_NAMES | set(split_words(document.server).casefold().split())
    return " ".join(word for word in split_words(document.name).casefold().split() if word not in no_object)


def has_verb(step: str, document: ToolDocument) -> bool:
    """Return True if a tool has the very verb that a step begins with."""
    verb = query_tokens(next(telling_words(in_one_word(step)), ""))
    described = " ".join(document.description[:OBJECT_CHARACTERS].split()[:VERB_WORDS])
    return bool(verb) and verb[0] in query_tokens(f"{split_words(document.name)} {described}")


def has_word(words: Iterable[str], document: ToolDocument) -> bool:
    """Return True if the text of a tool has one of these words."""
    brief = replace(document, description=document.description[:OBJECT_CHARACTERS])
    return not set(query_tokens(" ".join(words))).isdisjoint(lexical_tokens(brief))
