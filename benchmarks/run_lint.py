"""Does the lint recognise poisoned definitions, and leave harmless ones alone?

    PML_DATA=... python -m benchmarks.run_lint [--without SOURCE ...] [--show] [--save]

Every source of `poison/tools.jsonl` is judged by a classifier trained without it, and without the other sources of its
group; harmless tools also without their servers. The texts in `models/lint/texts` are judged by one trained with those
of the other half of the writers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.results import save
from pml_gateway.trust.lint import Linter
from pml_gateway.trust.verdict import Peer, Subject, SubjectKind, Verdict
from pml_gateway.types import JsonObject

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "models"))
from build_lint import (  # noqa: E402
    definition_of,
    labelled,
    own_definitions,
    own_sentences,
    poison_rows,
    text_rows,
    texts,
    train,
    unlabelled,
)

DATA = Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))
LARGE_SOURCE = "benign/toucan_servers"
GROUPS = 6
FIXTURES = 700
Row = dict[str, Any]


def main() -> None:
    """Judge every source, print shares, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--without", nargs="*", default=[], help="sources that are left out altogether")
    parser.add_argument("--show", action="store_true", help="print what was missed and what was flagged wrongly")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    rows = [row for row in poison_rows(DATA) if row["source"] not in arguments.without]
    measured = _measured(rows, show=arguments.show)
    print(json.dumps(measured, indent=1))
    if arguments.save:
        print(save("lint", {"folds": "sources in groups", "groups": GROUPS}, measured))


def _measured(rows: Sequence[Row], *, show: bool) -> JsonObject:
    examples = labelled(rows)
    fixtures = list(_fixtures())
    real = unlabelled(DATA)
    own = [*own_definitions(), *own_sentences()]
    written = texts()

    def trained(
        wanted: Callable[[Row], bool], without: Collection[str], writers: Collection[str] = tuple(written)
    ) -> Linter:
        kept = [each for row, each in zip(rows, examples, strict=True) if wanted(row) and row["server"] not in without]
        others = [each for server, tools in real.items() if server not in without for each in tools]
        by_writers = [each for writer in writers for each in written[writer]]
        return Linter(train([*kept, *others, *own, *by_writers]))

    verdicts: dict[str, Verdict] = {}
    seconds = 0.0
    for fold in sorted({_fold(row) for row in rows}):
        servers = {row["server"] for row in rows if _fold(row) == fold and row["label"] == "benign"}
        linter = trained(lambda row, fold=fold: _fold(row) != fold, servers)  # type: ignore[misc]
        start = time.process_time()
        verdicts |= {row["id"]: judged(linter, row) for row in rows if _fold(row) == fold}
        seconds += time.process_time() - start
    if show:
        _show(rows, verdicts)
    linter = trained(lambda row: True, {server for server, _ in fixtures})
    flagged = _flagged(linter, fixtures)
    halves = sorted(written)[::2], sorted(written)[1::2]
    judged_texts = [
        each
        for fitted, left in (halves, halves[::-1])
        for each in _judged_texts(trained(lambda row: True, {server for server, _ in fixtures}, fitted), left)
    ]
    return {
        **_shares(rows, verdicts),
        "texts_of_other_writers": _shares_of_texts(judged_texts),
        "cost": {
            "milliseconds_per_tool": round(1000 * seconds / len(rows), 3),
            "tools_1000_s": _cost(linter, fixtures),
        },
        "real_tools": {"tools": len(fixtures), "flagged": flagged},
        "real_tools_as_shipped": {"tools": len(fixtures), "flagged": _flagged(Linter(), fixtures)},
    }


def judged(linter: Linter, row: Row) -> Verdict:
    """The verdict on a row, with its peers and what was there before."""
    peers = [Peer(peer["server"], peer["tool"]["name"], peer["tool"]["description"]) for peer in row.get("peers", [])]
    return linter.judge([Subject(SubjectKind.TOOL, row["server"], _tool(row), row.get("before"))], peers)[0]


def _judged_texts(linter: Linter, writers: Sequence[str]) -> Iterator[tuple[Row, Verdict]]:
    rows = text_rows()
    for writer in writers:
        for row in rows[writer]:
            subject = Subject(SubjectKind.TOOL, row["server"], definition_of(row), row.get("before"))
            siblings = [Peer(row["server"], name) for name in row.get("siblings", ())]
            others = [Peer("another server", name) for name in row.get("others", ())]
            yield row, linter.judge([subject], [*siblings, *others])[0]


def _shares_of_texts(judged_texts: Sequence[tuple[Row, Verdict]]) -> JsonObject:
    def share(wanted: Callable[[Row], bool]) -> float:
        found = [verdict.is_attack for row, verdict in judged_texts if wanted(row)]
        return round(sum(found) / len(found), 4)

    return {
        "attacks": share(lambda row: row["label"] == "attack"),
        "look_alikes": share(lambda row: row["label"] == "benign" and not row.get("before")),
        "updates": share(lambda row: row["label"] == "benign" and bool(row.get("before"))),
    }


def _tool(row: Row) -> JsonObject:
    """The definition; a schema that the set put in is withheld, for it would tell the set apart."""
    tool: JsonObject = row["tool"]
    return {key: value for key, value in tool.items() if key != "inputSchema"} if row.get("schema_synthetic") else tool


def _fold(row: Row) -> int:
    unit = row["server"] if row["source"] == LARGE_SOURCE else row["source"]
    return int(hashlib.md5(unit.encode()).hexdigest(), 16) % GROUPS


def _fixtures() -> Iterator[tuple[str, JsonObject]]:
    keys = {"name": "name", "description": "description", "inputSchema": "input_schema"}
    with (DATA / "dev" / "distractors.jsonl").open(encoding="utf-8") as lines:
        for line in islice(lines, FIXTURES):
            row = json.loads(line)
            yield row["server"], {key: row[old] for key, old in keys.items() if row.get(old)}


def _flagged(linter: Linter, fixtures: Sequence[tuple[str, JsonObject]]) -> list[JsonObject]:
    subjects = [Subject(SubjectKind.TOOL, server, tool) for server, tool in fixtures]
    peers = [Peer(server, str(tool["name"]), str(tool.get("description", ""))) for server, tool in fixtures]
    return [
        {
            "tool": f"{subject.server}/{subject.definition['name']}",
            "why": [f"{each.where}: {each.text}" for each in verdict.reasons],
        }
        for subject, verdict in zip(subjects, linter.judge(subjects, peers), strict=True)
        if verdict.is_attack
    ]


def _cost(linter: Linter, fixtures: Sequence[tuple[str, JsonObject]]) -> float:
    subjects = [Subject(SubjectKind.TOOL, server, tool) for server, tool in (*fixtures, *fixtures)][:1_000]
    start = time.process_time()
    linter.judge(subjects)
    return round(time.process_time() - start, 3)


def _shares(rows: Sequence[Row], verdicts: dict[str, Verdict]) -> JsonObject:
    def share(wanted: Callable[[Row], bool]) -> JsonObject:
        of = [row for row in rows if wanted(row)]
        flagged = sum(verdicts[row["id"]].is_attack for row in of)
        return {"rows": len(of), "flagged": flagged, "share": round(flagged / len(of), 4) if of else None}

    poison = [row for row in rows if row.get("style") == "poison"]
    classes = Counter(row["class"] for row in poison)
    return {
        "poison": share(lambda row: row.get("style") == "poison"),
        "poison_underived": share(lambda row: row.get("style") == "poison" and row["origin"] != "derived"),
        "poison_derived": share(lambda row: row.get("style") == "poison" and row["origin"] == "derived"),
        "classes": {
            name: {
                **share(lambda row, name=name: row.get("style") == "poison" and row["class"] == name),  # type: ignore[misc]
                "sources": len({row["source"] for row in poison if row["class"] == name}),
            }
            for name in sorted(classes)
        },
        "ordinary": share(lambda row: row["class"] == "ordinary" and not row.get("before")),
        "hard_negative": share(lambda row: row["class"] == "hard_negative" and not row.get("before")),
        "updates": share(lambda row: row["label"] == "benign" and bool(row.get("before"))),
        "styles": {
            style: share(lambda row, style=style: row.get("style") == style)  # type: ignore[misc]
            for style in ("fragment", "overt", "name_only")
        },
    }


def _show(rows: Sequence[Row], verdicts: dict[str, Verdict]) -> None:
    for row in rows:
        verdict = verdicts[row["id"]]
        if verdict.is_attack and row["label"] == "benign":
            print(
                "WRONG",
                f"{verdict.score:.2f}",
                row["source"],
                row["class"],
                row["id"],
                [each.text for each in verdict.reasons][:2],
            )
        if not verdict.is_attack and row.get("style") == "poison":
            print(
                "MISSED",
                f"{verdict.score:.2f}",
                row["class"],
                row["id"],
                str(row["tool"].get("description"))[-120:].replace("\n", " "),
            )


if __name__ == "__main__":
    main()
