"""Verbs: the action that a request asks for, and the action in a tool's name; an English lexicon for both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.evidence import Evidence, Floats, Positions, Query
from pml_gateway.index.text import ToolDocument, split_words

OPPOSITE_LOSS = 0.08
"""Cosine lost by a tool that does the opposite of the request: more than the distance between near misses (.02 to .07),
less than between subjects, because a verb can be misread. With .05 as many requests gain; .15 and more lose steps."""

LOOKUP_LOSS = 0.02
"""Cosine lost by a tool that only reads if the request is to write: little, as it often finds what the write needs."""

READ, ADD, CHANGE, REMOVE = (1 << bit for bit in range(4))
_KINDS = READ | ADD | CHANGE | REMOVE
UNKNOWN = 1 << 62
"""Action of a tool without a known verb: no request rules it out."""

LEXICON: Mapping[int, tuple[str, str]] = {
    READ: (
        "browse check count describe display fetch find get inspect list look lookup query read retrieve search see"
        " show view",
        "calculate compute convert estimate extract filter load select",
    ),
    ADD: (
        "add append create generate insert make overwrite register remember save store write",
        "backup book build buy copy draft export fork import open post publish reply reserve schedule send start submit"
        " upload",
    ),
    CHANGE: (
        "change edit modify patch rename replace set update",
        "activate apply approve archive assign click close commit configure deploy disable enable execute lock merge"
        " move navigate push reopen reset resume run stop switch sync transfer type unlock",
    ),
    REMOVE: (
        "clear delete drop erase forget purge remove wipe",
        "cancel kill logout reject revoke uninstall",
    ),
}
"""Verbs by action: first those that rule out tools with another action, then others that begin a request."""

OTHER_VERBS = """
announce answer ask bump call compare cordon email enter explain fill format give hover inform log message notify order
parse pay play predict press print react report restart return review roll scale screenshot share sort summarise
summarize tag take tell test track translate use validate verify visit wait watch
"""
"""Verbs that begin a request but have none of these actions."""

_ALSO_CHANGING = "overwrite save write"
_OPPOSITES = """
activate/deactivate approve/reject archive/unarchive assign/unassign attach/detach close/open,reopen
compress,zip/decompress,extract,unzip connect/disconnect decode/encode decrypt/encrypt disable/enable download/upload
export/import follow/unfollow grant/revoke hide/show,unhide install/uninstall like/unlike lock/unlock login/logout
mount/unmount mute/unmute pause/resume pin/unpin protect/unprotect stage/unstage start/kill,stop subscribe/unsubscribe
"""

OPPOSITE_ACTION_LOSS, OTHER_ACTION_LOSS, NEAR_ACTION_LOSS = 0.3, 0.12, 0.06
"""Strength lost in lists by a tool of the opposite action (`zip` for `unzip`), of another one, and of another one where
both write: `post` may well `update`."""

_RULED_OUT = {READ: ADD | CHANGE | REMOVE, ADD: REMOVE, CHANGE: REMOVE, REMOVE: ADD}
"""Actions ruled out by the action that a request asks for. Removing a word changes a text, so REMOVE does not rule out
CHANGE."""

_PHRASES = {
    "back up": "backup",
    "come up with": "create",
    "get rid of": "delete",
    "jot down": "create",
    "look for": "search",
    "make a backup of": "backup",
    "make a copy of": "copy",
    "note down": "create",
    "put down": "create",
    "set up": "create",
    "switch off": "disable",
    "switch on": "enable",
    "throw away": "delete",
    "throw out": "delete",
    "turn off": "disable",
    "turn on": "enable",
    "write down": "create",
}
"""Verbs of several words, with the one word that tools use."""

_TEXT_LOOKED_FOR = re.compile(
    r"\b(with|containing|contains?|having|mention(?:s|ing)?|saying|says?)\s+(?=[\"'`“«]\w|[A-Z]{3,}\b)"
)
"""A word before a text to search for, quoted or in capitals: `all files with TODO`."""

_CALLED = {
    "backup": "copy",
    "bump": "upgrade",
    "erase": "delete",
    "forget": "delete",
    "remember": "create",
    "save": "write",
    "stage": "add",
    "unstage": "reset",
    "wipe": "delete",
    "zip": "compress",
}
"""Verbs of people with the verbs that tools use for them; the shipped model does not know these synonyms."""

_FILE_NAME = re.compile(
    r"(?<![\w/:.@])((?:[\w~.-]*/)*[\w-]+\.(?:csv|docx?|html?|jpe?g|js|json|log|md|pdf|png|py|toml|ts|txt|xlsx?|xml"
    r"|ya?ml|zip))\b(?![@/]|\.\w|\s+files?\b)",
    re.IGNORECASE,
)

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
Bits = npt.NDArray[np.int64]


def _actions() -> tuple[dict[str, int], dict[str, int]]:
    actions: dict[str, int] = {}
    ruled_out: dict[str, int] = {}

    def learn(words: str, does: int, rules_out: int) -> None:
        for word in words.replace(",", " ").split():
            actions[word] = actions.get(word, 0) | does
            ruled_out[word] = ruled_out.get(word, 0) | rules_out

    for action, (ruling, _) in LEXICON.items():
        learn(ruling, action, _RULED_OUT[action])
    learn(_ALSO_CHANGING, CHANGE, 0)
    for number, pair in enumerate(_OPPOSITES.split()):
        one, other = 1 << (4 + 2 * number), 1 << (5 + 2 * number)
        first, second = pair.split("/")
        learn(first, one, other)
        learn(second, other, one)
    return actions, ruled_out


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


_ACTIONS, _RULES_OUT = _actions()
VERBS = word_set(" ".join(words for row in LEXICON.values() for words in row) + OTHER_VERBS) | frozenset(_ACTIONS)
"""Verbs that begin a request."""

ALONE = VERBS - word_set(OTHER_VERBS)
"""Verbs that can be a step without an object after another step; the others are as often nouns."""

_FILLERS = word_set(
    "a able ahead also and am can could do finally first go help hey hi how i i'd id just kindly let let's lets like me"
    " need next now please then to try want wanna we will would you"
)
"""Words before the verb of a request: `could you please`, `how do I`."""

_READING = word_set("answer compare download explain review summarise summarize track verify watch")
"""Verbs of people that tools serve by reading."""

_QUESTIONS = word_set("many what what's whats when where which who who's whose why")
_DETERMINERS = word_set("a all an each every it its my the their them these this those")

_PHRASE = re.compile(rf"^\W*(?:(?:{'|'.join(sorted(_FILLERS))})\b\W*)*?\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)

_NO_ACTION = word_set("and history log logs notes of off or out rid")
"""Words after a verb that change its action, add another one, or make it a noun: `get rid of`, `update history`."""


class Verbs(Evidence):
    """Evidence by verbs: the cosine that a tool loses if its actions differ from those that a query asks for."""

    def __init__(self, documents: Sequence[ToolDocument]) -> None:
        self._actions = np.asarray([actions_of(document) for document in documents], dtype=np.int64)

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return negative losses; the whole of several steps loses as little as one of them."""
        whole, *steps = query.texts
        lost = -losses(steps or (whole,), self._actions[positions])
        return np.vstack((lost.max(axis=0), lost)) if steps else lost

    def list_losses(self, step: str, asked: int, positions: Positions) -> Floats:
        """Return what tools (n,) lose in the list of a step that asks for other actions than theirs."""
        if not asked:
            return np.zeros(len(positions), dtype=np.float32)
        actions, writes = self._actions[positions], ADD | CHANGE
        is_near = (actions & writes).astype(bool) & bool(asked & writes)
        loss = np.where(is_near, np.float32(NEAR_ACTION_LOSS), np.float32(OTHER_ACTION_LOSS))
        lost: Floats = np.where(actions & (asked | UNKNOWN), np.float32(0), loss)
        opposite = (actions & _RULES_OUT.get(_asked(step), 0) & ~_KINDS).astype(bool)
        return np.where(opposite, np.float32(OPPOSITE_ACTION_LOSS), lost)


def actions_of(document: ToolDocument) -> int:
    """Return the actions of a tool as bits, from its name and the first word of its description; often UNKNOWN."""
    before, actions = "", 0
    for word in split_words(document.name).casefold().split():
        if not actions or before in ("and", "or"):
            actions |= _ACTIONS.get(word, 0)
        before = word
    described = document.description[:40].split(None, 1)
    if described:
        actions |= _ACTIONS.get(_infinitive(described[0].casefold()), 0)
    return actions or UNKNOWN


def losses(requests: Sequence[str], actions: Bits) -> Floats:
    """Return the losses (k, n) of n tools whose actions differ from the verbs of k requests."""
    return np.stack([_losses(_asked(request), actions) for request in requests])


def in_words_of_tools(request: str) -> str:
    """Return a request with tools' words for verbs and files added: `save write it to a.md file` finds `write_file`."""
    request = in_one_word(request)
    verb = leads(request)
    if verb in _CALLED:
        request = re.sub(rf"\b{verb}\b", rf"\g<0> {_CALLED[verb]}", request, count=1, flags=re.IGNORECASE)
    request = _TEXT_LOOKED_FOR.sub(r"\1 the text ", request)
    return _FILE_NAME.sub(r"\1 file", request) if "." in request else request


def leads(text: str) -> str:
    """Return the verb that a request begins with, after fillers; empty if it does not begin with a verb."""
    first = next(telling_words(in_one_word(text)), "")
    return first if first in VERBS else ""


def is_question(text: str) -> bool:
    """Return True if a text begins like a question."""
    return next(_words(text), "") in _QUESTIONS | {"how"} or next(telling_words(text), "") in _QUESTIONS


def has_object(text: str) -> bool:
    """Return True if the second word of a request is `the`, `it` or similar, so that the first must be a verb."""
    told = telling_words(text)
    return next(told, "") != "" and next(told, "") in _DETERMINERS


def is_bare(text: str) -> bool:
    """Return True if a text is a verb alone: the `stage` of `stage and commit changes`."""
    told = list(telling_words(text))
    return len(told) == 1 and told[0] in VERBS


def telling_words(text: str) -> Iterator[str]:
    """Yield the words of a request, starting at the first one that is not a filler."""
    words = _words(text)
    for word in words:
        if word not in _FILLERS:
            yield word
            yield from words


def _asked(request: str) -> str:
    """Return the verb of the lexicon that the request asks for; empty if that is uncertain."""
    if next(telling_words(request), "") in _QUESTIONS:
        return "get"
    told = telling_words(in_one_word(request))
    verb, follower = next(told, ""), next(told, "")
    return verb if verb in _ACTIONS and follower not in _NO_ACTION else ""


def asked_actions(step: str) -> int:
    """Return the actions that a step asks for, as bits; 0 if that is uncertain."""
    asked = _asked(step)
    return (_ACTIONS[asked] if asked else 0) | (READ if leads(step) in _READING else 0)


def _losses(asked: str, actions: Bits) -> Floats:
    if not asked:
        return np.zeros(len(actions), dtype=np.float32)
    ruled_out = _RULES_OUT[asked]
    lost: Floats = np.where(actions & ~ruled_out, np.float32(0), np.float32(OPPOSITE_LOSS))
    if not _ACTIONS[asked] & (ADD | CHANGE | REMOVE):
        return lost
    lookup: Floats = np.where(actions & ~(ruled_out | READ), np.float32(0), np.float32(LOOKUP_LOSS))
    return np.maximum(lost, lookup)


def in_one_word(request: str) -> str:
    """Return the request with a verb of several words replaced by one word: `get rid of` becomes `delete`."""
    found = _PHRASE.match(request)
    return request if found is None else f"{_PHRASES[found[1].casefold()]}{request[found.end() :]}"


def _words(text: str) -> Iterator[str]:
    return (match.group().casefold().replace("’", "'") for match in _WORD.finditer(text))


def _infinitive(word: str) -> str:
    """Return the base form of a verb: `create` for `creates`, `fetch` for `fetches`."""
    return next((form for form in (word, word.removesuffix("s"), word.removesuffix("es")) if form in _ACTIONS), word)
