"""Recognition of texts that an owner rejected, wherever they come back and with small edits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from rapidfuzz.distance import LCSseq

from pml_gateway.trust.passages import passages_of
from pml_gateway.trust.reveal import reveal
from pml_gateway.trust.verdict import RiskClass, Verdict
from pml_gateway.types import JsonObject

MIN_WORDS = 4
MIN_CHARACTERS = 24
"""Words and characters from which a rejected text is recognised; shorter texts are alike by chance."""

MAX_WORDS = 60
"""Words of a rejected text that are compared."""

RUN = 4
"""Words in a row that are unchanged in every text that is recognised: edits are few."""

MAX_PLACES = 20
"""Places of one run of words in a passage that are looked at."""

WORDS_PER_EDIT = 12
"""One word may be missing or changed for each of so many words of a rejected text."""

_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\\W_]+")
"""A word; in scripts without blanks between words, a character."""

_NOT_QUOTED = {RiskClass.OBFUSCATED_TEXT, RiskClass.EMBEDDED_SECRET}
"""Classes whose reasons describe the text instead of quoting it."""


def texts_to_recognise(definition: JsonObject, verdict: Verdict | None) -> list[str]:
    """Return the sentences that the lint quoted, as words; the description or instructions if it quoted none."""
    reasons = verdict.reasons if verdict is not None and verdict.is_attack else ()
    quoted = [each.text for each in reasons if each.risk_class not in _NOT_QUOTED and each.where != "name"]
    found = _recognisable(quoted)
    return found or _recognisable([str(definition.get("description") or definition.get("instructions") or "")])


def recognises(rejected: Collection[str], definition: JsonObject) -> bool:
    """Return True if the definition says one of the rejected texts, or nearly so."""
    if not rejected:
        return False
    texts = [text.split(" ") for text in rejected]
    for passage in passages_of(definition)[0]:
        if len(passage.text) >= MIN_CHARACTERS:
            words = _words(passage.text)
            places = _places(words)
            if any(_says(words, places, text) for text in texts):
                return True
    return False


def _recognisable(texts: Sequence[str]) -> list[str]:
    found = [_words(text)[:MAX_WORDS] for text in texts]
    kept = [" ".join(words) for words in found if len(words) >= MIN_WORDS]
    return [text for text in dict.fromkeys(kept) if len(text) >= MIN_CHARACTERS]


def _places(words: Sequence[str]) -> dict[tuple[str, ...], list[int]]:
    """Return where each run of words begins."""
    places: dict[tuple[str, ...], list[int]] = {}
    for at in range(len(words) - RUN + 1):
        found = places.setdefault(tuple(words[at : at + RUN]), [])
        if len(found) < MAX_PLACES:
            found.append(at)
    return places


def _says(words: Sequence[str], places: Mapping[tuple[str, ...], Sequence[int]], text: Sequence[str]) -> bool:
    """Return True if nearly all words of the text stand close together and in order."""
    edits = len(text) // WORDS_PER_EDIT
    begins = {
        max(place - at - edits, 0)
        for at in range(len(text) - RUN + 1)
        for place in places.get(tuple(text[at : at + RUN]), ())
    }
    return any(
        LCSseq.similarity(words[begin : begin + len(text) + 2 * edits], text) >= len(text) - edits for begin in begins
    )


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", reveal(text).plain).casefold()
    return _WORD.findall(plain)
