"""Clauses: the steps of a request of several, and one strength from what speaks for tools in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pml_gateway.index.concepts import VERBS
from pml_gateway.index.text import UNSPACED

MIN_REQUEST_WORDS = 10
"""A shorter request is one step: parts of it lose the context that says what is meant."""

MIN_CLAUSE_WORDS = 4
"""A shorter part stays with its neighbour: `and London` is no step of its own."""

MAX_CLAUSES = 8
"""Each one costs an embedding (1 to 2 ms); a request with more steps keeps the first ones."""

CLAUSE_SHARE = 0.35
"""Of the clauses in the strength; the rest is the whole request's. Requests told in prose want less (with 0 our own
held-out ones gain .007 nDCG@10, with 0.5 they lose .03), lists of commands more (with 0.5 seal_tools gains .012)."""

SERVER_SHARE = 0.2
"""How much a tool loses by the distance of its server's best tools to the best of all, in requests of several steps."""

SERVER_EVIDENCE = 3
"""Tools that speak for a server: one good match is a coincidence, three are its subject."""

MAX_SERVER_LOSS = 0.5
TWINS_FIRST = 2
"""Tools of one name that may come before the best tool of another step."""

TWINS_SOUGHT = 20
CHARACTERS_PER_WORD = 3
"""Of scripts written without spaces."""

_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])|\n+")
_JOINT = re.compile(
    r"(,?\s+(?:and then|and also|and finally|after that|afterwards|then|also|finally|additionally|as well as|and|but"
    r"|plus|before|while)\s+|,\s+(?=\w+\s+\w+\s+\w+))",
    re.IGNORECASE,
)

_STEP_JOINT = re.compile(
    r"(\s*;\s+|,?\s+(?:and then|and also|and finally|after that|afterwards|then|and|but|plus|before|so)\s+|,\s+)",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"(?:(?:and|also|finally|first|if so|if not|otherwise|lastly|next|now|please|then|additionally|can|could|would"
    r"|will|you|i|we|want|need|like|to|me|help|let's|just|kindly|furthermore|moreover|after that)\b[,\s]*)*",
    re.IGNORECASE,
)
"""What stands before the verb of a step."""

_SAID = """
ask buy call comment compare delete determine download email ensure find forward give help inform invite know notify
order pay plan play print provide recommend record remind return say see share sort store suggest summarize summarise
tell text track translate tweet use
"""
"""Verbs of requests that are no verbs of tools."""

_TO_DO = VERBS | frozenset(_SAID.split())

Floats = npt.NDArray[np.float32]


def split_clauses(request: str) -> tuple[str, ...]:
    """The steps of a request, at most MAX_CLAUSES; none when it is a single one."""
    if _words(request) < MIN_REQUEST_WORDS:
        return ()
    clauses: list[str] = []
    for sentence in _SENTENCE_END.split(request):
        parts = _steps(sentence.strip())
        if parts and clauses and _words(parts[0]) < MIN_CLAUSE_WORDS:
            clauses[-1] += " " + parts.pop(0)
        clauses += parts
    return tuple(clauses[:MAX_CLAUSES]) if len(clauses) > 1 else ()


def combine(whole: Floats, clauses: Floats) -> Floats:
    """Strengths (n,) from those for the whole request (n,) and for each clause (k, n).

    A tool counts by the clause it comes closest to being best in, so that the best tools of all clauses meet on one
    level and no clause that is easy to match crowds out the others.
    """
    best = clauses.max(axis=1, keepdims=True)
    nearest: Floats = (clauses - best).max(axis=0) + best.mean()
    combined: Floats = (1 - CLAUSE_SHARE) * whole + CLAUSE_SHARE * nearest
    return combined.astype(np.float32)


def with_room(strengths: Floats, clauses: Floats, name_of: Callable[[int], str]) -> Floats:
    """Strengths (n,) in which the best tool of each clause (k, n) is not crowded out by many tools of one name.

    Six servers with a `web_search` serve one step; the tools of the other steps come before the third of them.
    """
    counts: Counter[str] = Counter()
    for at in np.argsort(-strengths, kind="stable")[:TWINS_SOUGHT].tolist():
        name = name_of(at)
        counts[name] += 1
        if counts[name] > TWINS_FIRST:
            firsts = clauses.argmax(axis=1)
            level = np.nextafter(strengths[at], np.float32(np.inf))
            lifted: Floats = strengths.copy()
            lifted[firsts] = np.maximum(lifted[firsts], level)
            return lifted
    return strengths


def with_server_evidence(strengths: Floats, servers: npt.NDArray[np.int64]) -> Floats:
    """Strengths (n,) lowered where the server of a tool (n,) has little else that fits."""
    order = np.argsort(-strengths, kind="stable")
    rows: dict[int, list[float]] = {}
    for at in order:
        row = rows.setdefault(int(servers[at]), [])
        if len(row) < SERVER_EVIDENCE:
            row.append(float(strengths[at]))
    best = float(strengths[order[0]])
    means = {
        server: (sum(row) + row[-1] * (SERVER_EVIDENCE - len(row))) / SERVER_EVIDENCE for server, row in rows.items()
    }
    losses = np.asarray([max(means[int(server)] - best, -MAX_SERVER_LOSS) for server in servers], dtype=np.float32)
    return strengths + np.float32(SERVER_SHARE) * losses


def _steps(sentence: str) -> list[str]:
    """A sentence cut at its joints, unless the part before or after is too short to be a step."""
    first, *rest = _JOINT.split(sentence)
    steps = [first] if first else []
    for joint, part in zip(rest[::2], rest[1::2], strict=True):
        if steps and min(_words(steps[-1]), _words(part)) < MIN_CLAUSE_WORDS:
            steps[-1] += joint + part
        else:
            steps.append(part)
    return steps


def _words(text: str) -> int:
    unspaced = sum(len(run) for run in UNSPACED.findall(text))
    return len(UNSPACED.sub(" ", text).split()) + unspaced // CHARACTERS_PER_WORD


def split_steps(request: str) -> tuple[str, ...]:
    """The parts of a request in each of which something may be to be done, at most MAX_CLAUSES; plans are made of them.

    Beside clauses, a part begins wherever a verb follows a joint, however short it is.
    """
    steps: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE_END.split(request))):
        first, *rest = _STEP_JOINT.split(" ".join(sentence.split()))
        parts = [first]
        for joint, part in zip(rest[::2], rest[1::2], strict=True):
            if says_to_do(part) and _words(parts[-1]) > 1:
                parts.append(part)
            else:
                parts[-1] += joint + part
        if steps and not says_to_do(parts[0]) and _words(parts[0]) < MIN_CLAUSE_WORDS:
            steps[-1] += " " + parts.pop(0)
        steps += [clause for part in parts for clause in split_clauses(part) or (part,)]
    return tuple(step.strip(" ;,") for step in steps[:MAX_CLAUSES])


def says_to_do(part: str) -> bool:
    """Whether a part of a request begins with what is to be done."""
    words = part[_LEAD.match(part).end() :].split()  # type: ignore[union-attr]  # it matches nothing, too
    return len(words) > 1 and words[0].strip(",.:").casefold() in _TO_DO
