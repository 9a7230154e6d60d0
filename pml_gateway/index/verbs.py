"""Verbs: what a request asks to be done, and what a tool does by its name; one lexicon, English as such names are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.text import ToolDocument, split_words

OPPOSITE_LOSS = 0.08
"""Cosine lost by a tool that does the opposite of what is asked: more than lies between near misses (.02 to .07), less
than between subjects, because a verb can be read wrongly. With .05 as many requests gain; .15 and more lose steps."""

LOOKUP_LOSS = 0.02
"""Lost by a tool that only reads where something is to be written: often it finds what the call then needs."""

LEXICAL_SCALE = 3.0
"""Units of log(1 + BM25) that tell as much as a cosine of one: from .3 to .9 the two curves span 1.5 and .47."""


READ, ADD, CHANGE, REMOVE = (1 << bit for bit in range(4))
UNKNOWN = 1 << 62
"""Instead of no action at all: what nothing rules out."""

LEXICON: Mapping[int, tuple[str, str]] = {
    READ: (
        "browse check count describe display fetch find get inspect list look lookup query read retrieve search see"
        " show view",
        "calculate compute convert estimate extract filter load select",
    ),
    ADD: (
        "add append create generate insert make overwrite register remember save store write",
        "book build buy copy draft export fork import open post publish reply reserve schedule send start submit"
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
"""Verbs by action: first those that rule out tools which do something else, then others that begin a request."""

OTHER_VERBS = """
announce answer ask bump call compare cordon email enter explain fill format give hover inform log message notify order
parse pay play predict press print react report restart return review roll scale screenshot share sort summarise
summarize tag take tell test track translate use validate verify visit wait watch
"""
"""Verbs that begin a request and ask for no such action."""

_ALSO_CHANGING = "overwrite save write"
_OPPOSITES = """
activate/deactivate approve/reject archive/unarchive assign/unassign attach/detach close/open,reopen
compress/decompress,extract connect/disconnect decode/encode decrypt/encrypt disable/enable download/upload
export/import follow/unfollow grant/revoke hide/show,unhide install/uninstall like/unlike lock/unlock login/logout
mount/unmount mute/unmute pause/resume pin/unpin stage/unstage start/kill,stop subscribe/unsubscribe
"""

_RULED_OUT = {READ: ADD | CHANGE | REMOVE, ADD: REMOVE, CHANGE: REMOVE, REMOVE: ADD}
"""By what each of these asks for. To remove a word is to change a text, so a change is left to those who remove."""


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


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ACTIONS, _RULES_OUT = _actions()
VERBS = _set(" ".join(words for row in LEXICON.values() for words in row) + OTHER_VERBS) | frozenset(_ACTIONS)
"""Verbs that begin a request."""

ALONE = VERBS - _set(OTHER_VERBS)
"""Verbs that are a step without an object after another step; the others are as often nouns."""

_FILLERS = _set(
    "a able ahead also and am can could do finally first go help hey hi how i i'd id just kindly let let's lets like me"
    " need next now please then to try want wanna we will would you"
)
"""What stands before the verb of a request: `could you please`, `how do I`."""

_QUESTIONS = _set("many what what's whats when where which who who's whose why")
_DETERMINERS = _set("a all an each every it its my the their them these this those")
_PHRASES = {
    "come up with": "create",
    "get rid of": "delete",
    "jot down": "create",
    "look for": "search",
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
"""Verbs of several words, with the one that tools have."""

_PHRASE = re.compile(rf"^\W*(?:(?:{'|'.join(sorted(_FILLERS))})\b\W*)*?\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)
_TEXT_LOOKED_FOR = re.compile(
    r"\b(with|containing|contains?|having|mention(?:s|ing)?|saying|says?)\s+(?=[\"'`“«]\w|[A-Z]{3,}\b)"
)
"""Before what stands in a text, quoted or in capitals: `all files with TODO`."""

_NO_ACTION = _set("and history log logs notes of off or out rid")
"""What follows a word that names another action than its own, several, or a thing: `get rid of`, `update history`."""

_CALLED = {
    "bump": "upgrade",
    "erase": "delete",
    "forget": "delete",
    "remember": "create",
    "save": "write",
    "stage": "add",
    "unstage": "reset",
    "wipe": "delete",
}
"""What tools call the things that people ask for in these words; the shipped model does not know it."""

_FILE_NAME = re.compile(
    r"(?<![\w/:.@])((?:[\w~.-]*/)*[\w-]+\.(?:csv|docx?|html?|jpe?g|js|json|log|md|pdf|png|py|toml|ts|txt|xlsx?|xml"
    r"|ya?ml|zip))\b(?![@/]|\.\w|\s+files?\b)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")

Bits = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def actions_of(document: ToolDocument) -> int:
    """The actions of a tool as bits, by the verb in its name and the first word of its description; often unknown."""
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
    """What each of n tools loses (k, n) by doing something else than the verb of each of k requests asks for."""
    return np.stack([_losses(_asked(request), actions) for request in requests])


def in_words_of_tools(request: str) -> str:
    """A request with what tools call its verb, and files, added: `save write it to a.md file` finds `write_file`."""
    request = _in_one_word(request)
    verb = leads(request)
    if verb in _CALLED:
        request = re.sub(rf"\b{verb}\b", rf"\g<0> {_CALLED[verb]}", request, count=1, flags=re.IGNORECASE)
    request = _TEXT_LOOKED_FOR.sub(r"\1 the text ", request)
    return _FILE_NAME.sub(r"\1 file", request) if "." in request else request


def leads(text: str) -> str:
    """The verb that a request begins with, politeness aside; empty where it begins otherwise."""
    first = next(telling_words(_in_one_word(text)), "")
    return first if first in VERBS else ""


def is_question(text: str) -> bool:
    """Whether a text begins as a question does."""
    return next(_words(text), "") in _QUESTIONS | {"how"} or next(telling_words(text), "") in _QUESTIONS


def has_object(text: str) -> bool:
    """Whether the second word of a request says `the`, `it` or the like, so that the first must be its verb."""
    told = telling_words(text)
    return next(told, "") != "" and next(told, "") in _DETERMINERS


def is_bare(text: str) -> bool:
    """Whether a text is a verb alone: the `stage` of `stage and commit changes`."""
    told = list(telling_words(text))
    return len(told) == 1 and told[0] in VERBS


def telling_words(text: str) -> Iterator[str]:
    """Yield the words of a request from the first that is no filler."""
    words = _words(text)
    for word in words:
        if word not in _FILLERS:
            yield word
            yield from words


def _asked(request: str) -> str:
    """The word of the lexicon that says what is asked for; empty where none certainly does."""
    if next(telling_words(request), "") in _QUESTIONS:
        return "get"
    told = telling_words(_in_one_word(request))
    verb, follower = next(told, ""), next(told, "")
    return verb if verb in _ACTIONS and follower not in _NO_ACTION else ""


def _losses(asked: str, actions: Bits) -> Floats:
    if not asked:
        return np.zeros(len(actions), dtype=np.float32)
    ruled_out = _RULES_OUT[asked]
    lost: Floats = np.where(actions & ~ruled_out, np.float32(0), np.float32(OPPOSITE_LOSS))
    if not _ACTIONS[asked] & (ADD | CHANGE | REMOVE):
        return lost
    lookup: Floats = np.where(actions & ~(ruled_out | READ), np.float32(0), np.float32(LOOKUP_LOSS))
    return np.maximum(lost, lookup)


def _in_one_word(request: str) -> str:
    """Return the request with the one verb of tools for its own of several words: `get rid of` becomes `delete`."""
    found = _PHRASE.match(request)
    return request if found is None else f"{_PHRASES[found[1].casefold()]}{request[found.end() :]}"


def _words(text: str) -> Iterator[str]:
    return (match.group().casefold().replace("’", "'") for match in _WORD.finditer(text))


def _infinitive(word: str) -> str:
    """`creates` as `create`, `fetches` as `fetch`."""
    return next((form for form in (word, word.removesuffix("s"), word.removesuffix("es")) if form in _ACTIONS), word)
