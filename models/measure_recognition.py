"""Measures how often known tools are recognised in other versions, and how often tools are that are not known.

    PML_DATA=... python models/measure_recognition.py --definitions tools.json --texts out/*.txt

Servers of `dev/distractors.jsonl` and `train/mcp_docs.jsonl` that came from elsewhere are unlike ones, forks or other
versions; each pair that is recognised is printed, to be judged by its names. Edits are made of the definitions
themselves, with and without the package that the command of a server would name.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from build_examples import Servers, Written, described, package_name, read_definitions, read_texts

from pml_gateway.example_queries.shipped import KnownServers, ServerTools, ShippedDefinition, words_of

OTHERS = ("dev/distractors.jsonl", "train/mcp_docs.jsonl")
SEED = 5
THIRD = 1 / 3

Edit = Callable[[dict[str, Any], random.Random], str]
"""Another description for a definition."""


def source_of(identity: str) -> str:
    """The collection and server that a definition was taken from."""
    return identity.split("::")[0]


def listing_of(definitions: Sequence[Mapping[str, Any]], package: str = "") -> ServerTools:
    """What the server lists."""
    return ServerTools(
        tuple(ShippedDefinition(each["name"], each.get("description") or "") for each in definitions), package
    )


def known_without(servers: Servers, tools: Mapping[str, list[Written]], left_out: frozenset[str]) -> KnownServers:
    """What is known without some servers."""
    return KnownServers(described(servers, {name: each for name, each in tools.items() if name not in left_out}))


def others(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Definitions of other collections by their servers."""
    found: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name in OTHERS:
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[source_of(row["id"])].setdefault(row["id"], row)
    return {server: list(rows.values()) for server, rows in found.items()}


def measure_others(servers: Servers, tools: Mapping[str, list[Written]], data: Path) -> None:
    """Which tools of other collections are recognised as tools of another server than their own."""
    sources = {name: {source_of(each["source"]) for each in definitions} for name, definitions in servers.items()}
    known, pairs, number = known_without(servers, tools, frozenset()), Counter[tuple[str, str]](), 0
    for server, definitions in others(data).items():
        own = frozenset(name for name in tools if server in sources[name])
        index = known_without(servers, tools, own) if own else known
        found = index.recognised(listing_of(definitions))
        pairs.update((server, index.servers[each.server].server) for each in found.values())
        number += len(definitions)
    print(f"of other servers: {pairs.total()} of {number} recognised, in {len(pairs)} pairs of servers")
    for (server, name), count in pairs.most_common():
        print(f"  {count:4} {server} as {name}")


def measure_edits(servers: Servers, tools: Mapping[str, list[Written]]) -> None:
    """How many tools are recognised after edits of their descriptions."""
    known = known_without(servers, tools, frozenset())
    words = [word for definitions in servers.values() for each in definitions for word in each["description"].split()]
    everything = [each for definitions in servers.values() for each in definitions]

    def changed(share: float) -> Edit:
        def edit(definition: dict[str, Any], draw: random.Random) -> str:
            kept: list[str] = []
            for word in definition["description"].split():
                what = draw.random() / share
                kept += [draw.choice(words)] if what < 1 / 3 else [] if what < 2 / 3 else [word]
                kept += [draw.choice(words)] if 2 / 3 <= what < 1 else []
            return " ".join(kept)

        return edit

    def sibling(definition: dict[str, Any], draw: random.Random) -> str:
        alike = [each for each in servers[definition["server"]] if each["description"] != definition["description"]]
        return str(draw.choice(alike or everything)["description"])

    edits: dict[str, tuple[Edit, float]] = {
        "nothing": (lambda definition, _: definition["description"], 1),
        "a tenth of the words, all tools": (changed(0.1), 1),
        "a fifth of the words, all tools": (changed(0.2), 1),
        "a fifth of the words, a third of the tools": (changed(0.2), THIRD),
        "a sentence of other words added, all tools": (
            lambda definition, draw: " ".join([definition["description"], *draw.choices(words, k=12)]),
            1,
        ),
        "the first sentence only, all tools": (
            lambda definition, _: re.split(r"(?<=[.!?])\s", definition["description"])[0],
            1,
        ),
        "WRONG: the description of any other tool, all tools": (
            lambda _, draw: str(draw.choice(everything)["description"]),
            1,
        ),
        "WRONG: the description of any other tool, a third": (
            lambda _, draw: str(draw.choice(everything)["description"]),
            THIRD,
        ),
        "WRONG: the description of a sibling, a third": (sibling, THIRD),
    }
    for name, (edit, share) in edits.items():
        for is_packaged in (False, True):
            draw, right, elsewhere, number = random.Random(SEED), 0, 0, 0
            for server, definitions in servers.items():
                edited = [draw.random() < share for _ in definitions]
                listed = [
                    {**each, "description": edit(each, draw)} if is_edited else each
                    for each, is_edited in zip(definitions, edited, strict=True)
                ]
                package = package_name(definitions[0].get("package") or ()) if is_packaged else ""
                found = known.recognised(listing_of(listed, package))
                wanted = {tool.name for tool in tools.get(server, ())}
                for at, each in enumerate(definitions):
                    if edited[at] and each["name"] in wanted:
                        number += 1
                        right += at in found
                        elsewhere += at in found and known.servers[found[at].server].server != server
            by = "with" if is_packaged else "without"
            print(f"{name}, {by} package: {right} of {number} ({right / number:.4f}), {elsewhere} at another server")


def main() -> None:
    """Read what the command line names, and print the rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--definitions", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    chosen = parser.parse_args()
    servers = read_definitions(chosen.definitions)
    numbers = {number for path in chosen.texts for number in read_texts(path.read_text(encoding="utf-8"))}
    written = {
        name: [Written(each["name"], words_of(each["description"]), ()) for each in definitions if each["n"] in numbers]
        for name, definitions in servers.items()
    }
    tools = {name: each for name, each in written.items() if each}
    measure_edits(servers, tools)
    measure_others(servers, tools, Path(os.environ["PML_DATA"]))


if __name__ == "__main__":
    main()
