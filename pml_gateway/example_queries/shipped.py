"""Shipped examples: written for the tools of public servers, and found again by what a server lists.

A server's name in the settings says nothing of what it is, and many servers have a tool called `search`. So a tool is
known by the words of its description, and a server by the tools it lists: some of them must say the same as those of
the known one (or both come from one package), and then each of its tools may differ as much as versions of a tool do. A
tool of a server that is not known must say the same itself, in words that hardly another tool has.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_gateway.errors import GatewayError
from pml_gateway.index.text import MAX_EXAMPLES, split_words, well_formed
from pml_gateway.log import get_logger
from pml_gateway.paths import shipped_places

logger = get_logger(__name__)

SAME = 0.95
"""Share of the words in common, by what they tell, from which a description is the same."""

CONTAINED = 0.98
"""The same for a description that something was added to or taken from; the part in common has to tell something."""

TELLING = 30.0
"""Bits that a part of a description tells; "Get information about a file" has some 20."""

MIN_ANCHORS = 3
ANCHOR_BITS = 75.0
ANCHOR_SHARE = 0.3
"""Tools whose descriptions are the same, what they tell together, and their share of those called alike, from which a
server is known."""

NAME_SHARE = 0.3
"""Of the smaller server's tools, those called alike."""

WHOLE_BITS = 30.0
"""Minimum length of identical descriptions that identify a server of one or two tools."""

VERSION_SAME = 0.6
VERSION_CONTAINED = 0.8
VERSION_BITS = 12.0
"""Minimum similarity of a known server's tool to its description in another version."""

ALONE_SAME = 0.9
ALONE_BITS = 60.0
"""Minimum similarity of any server's tool to a known one that makes it a copy."""

MAX_COMPARED = 4_000

_ARGUMENTS = re.compile(r"\b(?:Args|Arguments|Parameters|Params|Returns|Return|Raises|Examples?)\s*:")
"""Headings of argument sections, which some versions of a library move into the schema."""

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""Errors of zipfile and JSON for a damaged file."""


@dataclass(frozen=True, slots=True)
class ShippedDefinition:
    """Fields of a tool that recognition reads."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class ServerTools:
    """Tools that a server lists, and the package in its command, if any."""

    tools: tuple[ShippedDefinition, ...]
    package: str = ""


@dataclass(frozen=True, slots=True)
class ShippedServer:
    """A server whose tools have examples, and how many tools it lists with those that have none."""

    server: str
    package: str
    tools: tuple[str, ...]
    listed: int


def name_key(name: str) -> str:
    """Return a tool's name as it is compared: its words in lower case."""
    return split_words(name).casefold()


def words_of(description: str) -> frozenset[int]:
    """Return the words of a description as hashes, without what it says of arguments."""
    text = description[:MAX_COMPARED]
    head = _ARGUMENTS.split(text, maxsplit=1)[0]
    words = split_words(well_formed(head if head.strip() else text)).casefold().split()
    return frozenset(zlib.crc32(word.encode()) for word in words)


@dataclass(frozen=True, slots=True)
class _Match:
    """A tool of a listing, a known tool of its name, and what their descriptions have in common."""

    at: int
    known: int
    common: float
    same: float
    contained: float
    bits: float
    """Return the examples of the known tool."""

    @property
    def is_anchor(self) -> bool:
        return self.same >= SAME or (self.contained >= CONTAINED and self.common >= TELLING)

    @property
    def is_version(self) -> bool:
        return self.same >= VERSION_SAME or (self.contained >= VERSION_CONTAINED and self.common >= VERSION_BITS)

    @property
    def is_copy(self) -> bool:
        return self.same >= ALONE_SAME and self.common >= ALONE_BITS


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A known tool: its server and its place there."""

    server: int
    tool: int


class KnownServers:
    """The known servers as the file describes them; read for one recognition and not kept, for it takes megabytes."""

    def __init__(self, read: Mapping[str, Any]) -> None:
        """Content of `models/build_examples.py`: words with their document frequencies, and servers with tools."""
        self.servers = tuple(
            ShippedServer(each["server"], each["package"], tuple(tool[0] for tool in each["tools"]), each["listed"])
            for each in read["servers"]
        )
        vocabulary: list[int] = read["words"]
        counts: list[int] = read["counts"]
        self._rarest = math.log2(read["definitions"] + 1)
        self._bits = {word: self._rarest - math.log2(count + 1) for word, count in zip(vocabulary, counts, strict=True)}
        self._words = [[[vocabulary[at] for at in tool[1]] for tool in each["tools"]] for each in read["servers"]]
        self._by_name: dict[str, list[KnownTool]] = defaultdict(list)
        for at, server in enumerate(self.servers):
            for position, name in enumerate(server.tools):
                self._by_name[name_key(name)].append(KnownTool(at, position))

    def recognised(self, listing: ServerTools) -> dict[int, KnownTool]:
        """Return the tools of a listing that are known, by their places in it."""
        by_server: dict[int, list[_Match]] = defaultdict(list)
        for at, tool in enumerate(listing.tools):
            named_alike = self._by_name.get(name_key(tool.name), ())
            words = words_of(tool.description) if named_alike else frozenset()
            said = self._told(words)
            for known in named_alike:
                by_server[known.server].append(self._match(at, words, said, known))
        is_known = {at: self._is_known(listing, self.servers[at], matches) for at, matches in by_server.items()}
        found: dict[int, tuple[tuple[bool, float], KnownTool]] = {}
        for server, matches in by_server.items():
            for match in matches:
                if match.is_version if is_known[server] else match.is_copy:
                    rank = is_known[server], match.same
                    if match.at not in found or rank > found[match.at][0]:
                        found[match.at] = rank, KnownTool(server, match.known)
        return {at: known for at, (_, known) in found.items()}

    def _match(self, at: int, words: frozenset[int], said: float, known: KnownTool) -> _Match:
        known_words = frozenset(self._words[known.server][known.tool])
        common = self._told(words & known_words)
        known_said = self._told(known_words)
        either, less = said + known_said - common, min(said, known_said)
        return _Match(
            at,
            known.tool,
            common,
            same=common / either if either else 1.0,
            contained=common / less if less else 0.0,
            bits=known_said,
        )

    def _is_known(self, listing: ServerTools, server: ShippedServer, matches: Sequence[_Match]) -> bool:
        if server.package and server.package == listing.package:
            return True
        anchors = [match for match in matches if match.is_anchor]
        bits = sum(match.bits for match in anchors)
        alike = len({match.at for match in matches})
        if alike == len(anchors) == len(listing.tools) == server.listed and bits >= WHOLE_BITS:
            return True
        return (
            len(anchors) >= max(MIN_ANCHORS, ANCHOR_SHARE * alike)
            and bits >= ANCHOR_BITS
            and alike >= NAME_SHARE * min(len(listing.tools), server.listed)
        )

    def _told(self, words: Iterable[int]) -> float:
        return sum(self._bits.get(word, self._rarest) for word in words)


class ShippedExamples:
    """The file of shipped examples. Every method reads it and blocks: call it in a thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or _place()

    def examples_of(self, listings: Sequence[ServerTools]) -> list[tuple[tuple[str, ...], ...]]:
        """For each listing, the examples of each of its tools; none where a tool is not known."""
        nothing: list[tuple[tuple[str, ...], ...]] = [((),) * len(listing.tools) for listing in listings]
        if not any(listing.tools for listing in listings):
            return nothing
        try:
            with self._opened() as file:
                index = known_servers(file)
                recognised = [index.recognised(listing) for listing in listings]
                wanted = sorted({known.server for each in recognised for known in each.values()})
                examples = {server: _json(file, str(server)) for server in wanted}
        except _UNREADABLE as error:
            logger.warning("shipped examples %s cannot be read: %s; install the package anew", self._path, error)
            return nothing
        return [
            tuple(
                tuple(examples[known.server][known.tool])[:MAX_EXAMPLES] if (known := each.get(at)) else ()
                for at in range(len(listing.tools))
            )
            for listing, each in zip(listings, recognised, strict=True)
        ]

    def servers(self) -> tuple[ShippedServer, ...]:
        """Return the servers whose tools are known.

        Raises:
            GatewayError: the file cannot be read.
        """
        try:
            with self._opened() as file:
                return known_servers(file).servers
        except _UNREADABLE as error:
            raise GatewayError(f"{self._path} cannot be read: {error}", hint="install the package anew") from None

    def _opened(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self._path)


def known_servers(file: zipfile.ZipFile) -> KnownServers:
    """Read the known servers of an opened file."""
    return KnownServers(_json(file, "index"))


def _place() -> Path:
    places = shipped_places("models", "example_queries", "example_queries.zip")
    return next((place for place in places if place.is_file()), places[0])


def _json(file: zipfile.ZipFile, name: str) -> Any:
    return json.loads(file.read(f"{name}.json"))
