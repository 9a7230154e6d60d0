"""Trains the lint's classifier, one command: python models/build_lint.py [--data ../shared/data].

Reads `poison/tools.jsonl` and `train/mcp_docs.jsonl` from the data, and our own definitions, sentences and texts beside
the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, vstack
from sklearn.linear_model import LogisticRegression

from pml_gateway.trust.classifier import (
    FEATURES,
    HASHED,
    HASHED_PAIRS,
    HASHED_PIECES,
    MATCHES,
    TRAITS_FROM,
    WEIGHTS_FILE,
    Classifier,
    Features,
    shares_of,
)
from pml_gateway.trust.lexicon import spelled
from pml_gateway.trust.lint import known_of, own_names, sentences_of, traits_of
from pml_gateway.trust.passages import passages_of
from pml_gateway.trust.reveal import reveal
from pml_gateway.types import JsonObject

HERE = Path(__file__).resolve().parent
LINT = HERE / "lint"
DATA = Path(os.environ.get("PML_DATA", HERE.parents[1] / "shared" / "data"))

REGULARISATION = 0.3
SHARES = ((HASHED_PAIRS, 1.0), (HASHED_PIECES, 0.7), (FEATURES, 0.3))
"""Words, pairs of words and pieces of words; what tells less apart weighs less than kinds, which reach new texts."""

ATTACK_WEIGHT = 3.0
OWN_WEIGHT = 2.0
TEXT_WEIGHT = 1.5
SHARED = 0.6
"""Of a sentence's words, how many are in the words that do the harm where it is a part of them."""

HARD_WEIGHT = 2.0
"""Of harmless definitions that use the words of attacks."""

FULL_SOURCE = 30
"""Rows of a source up to which each counts in full; larger ones are damped, so that none sets the tone."""

ROUNDS = 4
"""Rounds of picking, for each attack, the sentence that made it one, and training again."""

THRESHOLD = 0.75
"""Logit from which a sentence is risky, chosen by cross-validation over sources: see models/README.md."""


@dataclass(frozen=True, slots=True)
class Example:
    """A definition as the features of its sentences."""

    sentences: tuple[Features, ...]
    is_risky: bool
    weight: float = 1.0


def features(
    definition: JsonObject,
    before: JsonObject | None = None,
    strangers: Sequence[str] = (),
    siblings: Sequence[str] = (),
    only: str = "",
) -> list[Features]:
    """Return the features of each sentence, of new ones only where there is a definition before."""
    passages, _ = passages_of(definition)
    own = own_names(passages) | {spelled(name) for name in siblings}
    known = known_of(before) if before is not None else frozenset()
    about = traits_of(definition)
    wanted = _words(only)
    return [
        np.fromiter(sorted(found), dtype=np.int32)
        for passage in passages
        if passage.text not in known
        for sentence in sentences_of(passage, reveal(passage.text), known, strangers, own, about)
        if (not wanted or _is_part(_words(sentence.text), wanted)) and (found := sentence.features())
    ]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{3,}|[\u3040-\u9fff]", text.lower()))


def _is_part(words: set[str], wanted: set[str]) -> bool:
    return len(words) >= 3 and len(words & wanted) >= SHARED * min(len(words), len(wanted))


def poison_rows(data: Path) -> list[dict[str, Any]]:
    """The labelled rows."""
    return [json.loads(line) for line in (data / "poison" / "tools.jsonl").open(encoding="utf-8")]


def labelled(rows: Sequence[dict[str, Any]]) -> list[Example]:
    """Rows as examples, in their order; lookalike names have no text to learn from."""
    attacks = Counter(row["source"] for row in rows if row["label"] == "attack")
    found = []
    for row in rows:
        is_attack = row["label"] == "attack"
        weight = min(1.0, (FULL_SOURCE / attacks[row["source"]]) ** 0.5) if is_attack else _harmless_weight(row)
        weight *= 0.5 if row.get("style") == "overt" else 1.0
        sentences = () if row.get("style") == "name_only" else features(row["tool"], row.get("before"), _strangers(row))
        found.append(Example(tuple(sentences), is_attack, weight))
    return found


def _harmless_weight(row: dict[str, Any]) -> float:
    return HARD_WEIGHT if row["class"] == "hard_negative" else 1.0


def unlabelled(data: Path) -> dict[str, list[Example]]:
    """Real tools by server, taken as harmless."""
    rows = [json.loads(line) for line in (data / "train" / "mcp_docs.jsonl").open(encoding="utf-8")]
    listed: dict[str, list[str]] = {}
    for row in rows:
        listed.setdefault(row["server"], []).append(row["name"])
    found: dict[str, list[Example]] = {}
    for row in rows:
        tool = {key: row.get(old) for key, old in _KEYS.items() if row.get(old)}
        read = features(tool, siblings=listed[row["server"]])
        found.setdefault(row["server"], []).append(Example(tuple(read), False))
    return found


_KEYS = {"name": "name", "description": "description", "inputSchema": "input_schema"}


def text_rows() -> dict[str, list[dict[str, Any]]]:
    """Return the texts that were written for this, by the number of their writer."""
    return {
        file.stem: [json.loads(line) for line in file.open(encoding="utf-8")]
        for file in sorted((LINT / "texts").glob("*.jsonl"))
    }


def definition_of(row: dict[str, Any]) -> JsonObject:
    """Return the definition of a text, with what its server says of itself."""
    said = {"instructions": row["instructions"]} if row.get("instructions") else {}
    return {**row.get("tool", {}), **said}


def texts() -> dict[str, list[Example]]:
    """Return the texts as examples; of an attack, the sentences that do the harm."""
    return {
        writer: [Example(tuple(_of_text(row)), row["label"] == "attack", TEXT_WEIGHT) for row in rows]
        for writer, rows in text_rows().items()
    }


def _of_text(row: dict[str, Any]) -> list[Features]:
    others = [name.lower() for name in row.get("others", ())]
    given = (definition_of(row), row.get("before"), others, row.get("siblings", ()))
    return (row.get("sentence") and features(*given, row["sentence"])) or features(*given)


def own_definitions() -> list[Example]:
    """Our own definitions, with those before them where they changed; none is of a published source."""
    rows = [json.loads(line) for line in (LINT / "definitions.jsonl").open(encoding="utf-8")]
    return [
        Example(
            tuple(features(row["tool"], row.get("before"), _strangers(row))),
            row["label"] == "attack",
            1.0 if row["label"] == "attack" else _harmless_weight(row),
        )
        for row in rows
    ]


def _strangers(row: dict[str, Any]) -> list[str]:
    return [peer["tool"]["name"].lower() for peer in row.get("peers", []) if peer["server"] != row["server"]]


def own_sentences() -> list[Example]:
    """Our own: `risky.txt` and `harmless.txt`, a text a line; `in: default TEXT` stands where it says."""
    return [
        Example(tuple(features(_definition(line))), is_risky, 1.0 if is_risky else OWN_WEIGHT)
        for file, is_risky in (("risky.txt", True), ("harmless.txt", False))
        for line in (LINT / file).read_text(encoding="utf-8").splitlines()
        if line and not (is_risky and line.startswith("# "))
    ]


def _definition(line: str) -> JsonObject:
    if not line.startswith("in: "):
        return {"description": line}
    _, place, text = line.split(" ", 2)
    if place == "property":
        return {"inputSchema": {"properties": {text: {}}}}
    return {"inputSchema": {"properties": {"value": {place: text if place == "default" else [text]}}}}


def train(examples: Sequence[Example], threshold: float = THRESHOLD) -> Classifier:
    """Fit the weights; an attack counts by the one of its sentences that sounds worst."""
    scale = np.ones(FEATURES)
    start = HASHED
    for end, share in SHARES:
        scale[start:end] = share
        start = end
    harmless = _matrix([found for each in examples if not each.is_risky for found in each.sentences], scale)
    harmless_weights = [each.weight for each in examples if not each.is_risky for _ in each.sentences]
    bags = [each for each in examples if each.is_risky and each.sentences]
    picked = [max(bag.sentences, key=_rules_and_length) for bag in bags]
    weights = np.concatenate([[ATTACK_WEIGHT * bag.weight for bag in bags], harmless_weights])
    labels = np.concatenate([np.ones(len(bags)), np.zeros(len(harmless_weights))])
    classifier = Classifier(np.zeros(FEATURES + 1, dtype=np.float32))
    for _ in range(ROUNDS):
        model = LogisticRegression(C=REGULARISATION, max_iter=200, solver="liblinear", tol=1e-3, random_state=0)
        model.fit(vstack([_matrix(picked, scale), harmless]), labels, sample_weight=weights)
        weights_now = np.append(model.coef_[0] * scale, model.intercept_[0] - threshold)
        classifier = Classifier(weights_now.astype(np.float32))
        picked = [max(bag.sentences, key=classifier.logit) for bag in bags]
    return classifier


def _rules_and_length(found: Features) -> tuple[int, int]:
    return int(((found >= MATCHES) & (found < TRAITS_FROM)).sum()), len(found)


def _matrix(rows: Sequence[Features], scale: npt.NDArray[np.float64]) -> Any:
    indices = np.concatenate(rows)
    pointers = np.cumsum([0, *(len(row) for row in rows)])
    shares = np.concatenate([shares_of(row) for row in rows])
    return csr_matrix((scale[indices] * shares, indices, pointers), shape=(len(rows), FEATURES))


def main() -> None:
    """Train on everything and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    rows = poison_rows(arguments.data)
    examples = [
        *labelled(rows),
        *chain.from_iterable(unlabelled(arguments.data).values()),
        *own_definitions(),
        *own_sentences(),
        *chain.from_iterable(texts().values()),
    ]
    classifier = train(examples)
    np.save(LINT / WEIGHTS_FILE, classifier.weights.astype(np.float16))
    print(f"{len(examples)} definitions, {np.count_nonzero(classifier.weights)} weights: {LINT / WEIGHTS_FILE}")


if __name__ == "__main__":
    main()
