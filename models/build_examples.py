"""Makes the file of shipped examples from texts that were written for definitions.

    python models/build_examples.py --definitions tools.json --texts out/*.txt

Definitions are a JSON list of `{"n", "server", "name", "description", "package"}`, each server's together; texts are
blocks of a line `[n]` and the examples of that definition, a line each. What is said twice, names a tool, was written
for a sibling as well or is warned of by the lint is left out. The file has no descriptions, only hashes of their words.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfuzz.fuzz import token_sort_ratio

from pml_gateway.config.commands.packages import package_of
from pml_gateway.example_queries.library import sound_lists
from pml_gateway.example_queries.shipped import words_of

TARGET = Path(__file__).parent / "examples" / "examples.zip"

NEAR_COPY = 90.0
"""Percent of two texts in common from which the second is left out."""

MIN_EXAMPLES = 3
"""A tool with fewer is no better found than without."""

_BLOCK = re.compile(r"^\[(\d+)\]\s*$", re.MULTILINE)
_SINCE = (2020, 1, 1, 0, 0, 0)
"""The time of every member, so that the same texts make the same file."""


Servers = Mapping[str, Sequence[dict[str, Any]]]
"""Definitions by server."""


@dataclass(frozen=True, slots=True)
class Written:
    """A tool with what was written for it, and of that what is shipped."""

    name: str
    words: frozenset[int]
    examples: tuple[str, ...]


def read_texts(text: str) -> dict[int, list[str]]:
    """The examples by the number of the definition; the last block of a number counts."""
    parts = _BLOCK.split(text)
    return {
        int(number): [line.strip() for line in block.splitlines() if line.strip()]
        for number, block in zip(parts[1::2], parts[2::2], strict=True)
    }


def read_definitions(path: Path) -> Servers:
    """The definitions by server."""
    servers: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for definition in json.loads(path.read_text(encoding="utf-8")):
        servers[definition["server"]].append(definition)
    return dict(servers)


def checked(
    definitions: Sequence[dict[str, Any]], texts: Mapping[int, Sequence[str]]
) -> tuple[list[Written], Counter[str]]:
    """The tools of one server with sound examples, and how many texts were left out for what."""
    left_out: Counter[str] = Counter()
    named = _naming(definition["name"] for definition in definitions)
    shared = Counter(line.casefold() for definition in definitions for line in set(texts.get(definition["n"], ())))
    offered: list[list[str]] = []
    for definition in definitions:
        kept: list[str] = []
        for line in texts.get(definition["n"], ()):
            if named is not None and named.search(line):
                left_out["names a tool"] += 1
            elif shared[line.casefold()] > 1:
                left_out["the same for a sibling"] += 1
            elif any(token_sort_ratio(line, other) >= NEAR_COPY for other in (*kept, definition["description"])):
                left_out["near-copy"] += 1
            else:
                kept.append(line)
        offered.append(kept)
    examples = sound_lists(offered)
    left_out["lint"] += sum(map(len, offered)) - sum(map(len, examples))
    found = [
        Written(definition["name"], words_of(definition["description"]), lines)
        for definition, lines in zip(definitions, examples, strict=True)
        if len(lines) >= MIN_EXAMPLES
    ]
    return found, left_out


def _naming(names: Iterable[str]) -> re.Pattern[str] | None:
    """What finds names of tools that are no words of a language."""
    spelled = [re.escape(name) for name in names if re.search(r"[_-]|[a-z][A-Z]", name)]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(spelled)})(?![\w-])") if spelled else None


def package_name(args: Sequence[str]) -> str:
    """The package of a command line without its runner, which is npx where it says yes to a question."""
    words = list(args[1:] if args[:1] == ["npx"] else args)
    return package_of("npx" if args[:1] == ["npx"] or "-y" in words else "uvx", words).name


def described(servers: Servers, tools: Mapping[str, Sequence[Written]]) -> dict[str, Any]:
    """What tools are recognised by: the words of descriptions, those of rare words telling more."""
    counts = Counter(
        word
        for definitions in servers.values()
        for each in definitions
        for word in words_of(each["description"]) | words_of(each["name"])
    )
    words = sorted(counts, key=lambda word: (-counts[word], word))
    place = {word: at for at, word in enumerate(words)}
    return {
        "definitions": sum(map(len, servers.values())),
        "words": words,
        "counts": [counts[word] for word in words],
        "servers": [
            {
                "server": server,
                "package": package_name(servers[server][0].get("package") or ()),
                "listed": len(servers[server]),
                "tools": [[tool.name, sorted(place[word] for word in tool.words)] for tool in written],
            }
            for server, written in tools.items()
        ],
    }


def write(target: Path, servers: Servers, texts: Mapping[int, Sequence[str]]) -> None:
    """Check everything, and write the file."""
    left_out: Counter[str] = Counter()
    tools: dict[str, list[Written]] = {}
    for server, definitions in servers.items():
        written, why = checked(definitions, texts)
        left_out += why
        if written:
            tools[server] = written
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w") as file:
        _add(file, "index", described(servers, tools))
        for at, written in enumerate(tools.values()):
            _add(file, str(at), [tool.examples for tool in written])
    number = sum(map(len, tools.values()))
    examples = sum(len(tool.examples) for written in tools.values() for tool in written)
    print(f"{len(tools)} servers, {number} tools, {examples} examples, {target.stat().st_size / 1e6:.2f} MB")
    print("left out:", ", ".join(f"{number} {why}" for why, number in left_out.most_common()))


def _add(file: zipfile.ZipFile, name: str, content: object) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    member = zipfile.ZipInfo(f"{name}.json", _SINCE)
    file.writestr(member, text.encode(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9)


def main() -> None:
    """Read what the command line names, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--definitions", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    parser.add_argument("--target", type=Path, default=TARGET)
    chosen = parser.parse_args()
    texts: dict[int, list[str]] = {}
    for path in chosen.texts:
        texts |= read_texts(path.read_text(encoding="utf-8"))
    write(chosen.target, read_definitions(chosen.definitions), texts)


if __name__ == "__main__":
    main()
