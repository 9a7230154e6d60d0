"""Enrichment: which tools are written for, prompt by prompt, and what becomes of what was written."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio.to_thread

from pml_gateway.errors import GatewayError
from pml_gateway.files import locked, make_private, write_atomically
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.text import ToolDocument
from pml_gateway.log import get_logger
from pml_gateway.requests.gates import DroppedRequest, SiftedRequests, sift
from pml_gateway.requests.library import ExampleRequest, LibraryEntry, RequestLibrary, RequestOrigin, sound_lists
from pml_gateway.requests.writers import Answer, Writer, WriterError
from pml_gateway.requests.writing import (
    Part,
    PromptDefinition,
    Reply,
    answer_tokens,
    parts,
    prompt,
    prompt_again,
    prompt_repaired,
    read_reply,
    wanted_requests,
)

logger = get_logger(__name__)

ENOUGH = 0.75
"""Share of the requests of a tool that is enough: for one that is missing, a prompt is not sent again."""

FAILURES = 3
"""Prompts in a row without an answer, after which the rest is left: the next ones would cost as much for nothing."""

MAX_TRIED = 50_000

WANTED = 0
"""Instead of the day: what is there is to be written anew, and was not yet."""

TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class EnrichmentPlan:
    """Tools to send, and the number of tools left out, by reason."""

    parts: tuple[Part, ...]
    left_out: Mapping[str, int]

    @property
    def tools(self) -> int:
        """Return the number of tools to write requests for."""
        return sum(len(part.tools) for part in self.parts)

    @property
    def digests(self) -> list[str]:
        """The definitions that are written for."""
        return [tool.digest for part in self.parts for tool in part.tools]


def plan(
    definitions: Sequence[PromptDefinition],
    known: Mapping[str, Sequence[ExampleRequest]],
    tried: Mapping[str, int],
    *,
    only: Collection[str] = (),
    everything: bool = False,
    with_shipped: bool = False,
) -> EnrichmentPlan:
    """Decide what is written for.

    Args:
        definitions: of all tools that may be sent.
        known: the requests of each definition that has any.
        tried: definitions that were written for before, with the day, or `WANTED`.
        only: servers; all where none is named.
        everything: also what was written for before.
        with_shipped: also what shipped requests cover.
    """
    wanted: set[str] = set()
    left_out: Counter[str] = Counter()
    for each in definitions:
        if only and each.server not in only:
            continue
        origins = {request.origin for request in known.get(each.digest, ())}
        if everything or tried.get(each.digest) == WANTED:
            wanted.add(each.digest)
        elif RequestOrigin.OWNER in origins or each.digest in tried:
            left_out["written for before"] += 1
        elif not with_shipped and RequestOrigin.SHIPPED in origins:
            left_out["covered by shipped requests"] += 1
        else:
            wanted.add(each.digest)
    chosen = [part for part in parts(definitions, frozenset(wanted)) if not only or part.server in only]
    return EnrichmentPlan(tuple(chosen), left_out)


@dataclass(slots=True)
class WrittenRequests:
    """Counts of requests so far."""

    tools: int = 0
    written: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Tools without any request after all."""
    prompts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    failures: list[str] = field(default_factory=list)
    unsent: int = 0
    """Tools whose prompts were not answered, or not sent any more."""

    def count(self, answer: Answer, count_tokens: TokenCounter, asked: str) -> None:
        """Count one answer, by what the writer says of its tokens or by what we count."""
        self.prompts += 1
        self.input_tokens += answer.input_tokens if answer.input_tokens is not None else count_tokens(asked)
        self.output_tokens += answer.output_tokens if answer.output_tokens is not None else count_tokens(answer.text)


class EnrichmentAttempt:
    """Definitions that were written for, also where nothing passed: a nightly run is not to pay for them again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "tried.json"

    def read(self) -> dict[str, int]:
        """Digests, and the days on which they were tried, or `WANTED`; nothing where the file cannot be read."""
        try:
            read = json.loads(self._path.read_bytes())
            return {str(key): int(day) for key, day in read.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, OverflowError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("%s cannot be read, and starts afresh: %s", self._path, error)
            return {}

    def add(self, digests: Collection[str]) -> None:
        """Note that these were tried.

        Raises:
            GatewayError: the file cannot be written.
        """
        self._note(digests, int(time.time() // 86_400))

    def want(self, digests: Collection[str]) -> None:
        """Note that these are to be written anew, so that a run that is interrupted is gone on with.

        Raises:
            GatewayError: the file cannot be written.
        """
        self._note(digests, WANTED)

    def _note(self, digests: Collection[str], day: int) -> None:
        try:
            make_private(self._path.parent)
            with locked(self._path):
                tried = self.read() | dict.fromkeys(digests, day)
                newest = sorted(tried.items(), key=lambda each: each[1])[-MAX_TRIED:]
                write_atomically(self._path, json.dumps(dict(newest)))
        except OSError as error:
            raise GatewayError(f"{self._path} cannot be written: {error}") from None


class Enrichment:
    """Writes for the parts of a plan, one after the other; each is stored when it is done."""

    def __init__(
        self,
        writer: Writer,
        library: RequestLibrary,
        tried: EnrichmentAttempt,
        catalog: Sequence[ToolDocument],
        embedder: Embedder,
        *,
        cache: EmbeddingCache | None = None,
        languages: Sequence[str] = ("en",),
        count_tokens: TokenCounter = len,
    ) -> None:
        """Write and judge.

        Args:
            writer: what is asked.
            library: where requests are kept.
            tried: what is not to be tried again.
            catalog: all tools, with the requests that they have.
            embedder: the model of search.
            cache: of embeddings.
            languages: what requests are written in.
            count_tokens: for writers that do not count.
        """
        self._writer = writer
        self._library = library
        self._tried = tried
        self._catalog = list(catalog)
        self._embedder = embedder
        self._cache = cache
        self._languages = tuple(languages)
        self._count_tokens = count_tokens
        self._failed_in_a_row = 0
        self._unread: set[str] = set()
        self.result = WrittenRequests()

    @property
    def has_given_up(self) -> bool:
        """Return True if the writer failed too often to continue."""
        return self._failed_in_a_row >= FAILURES

    async def write(self, part: Part) -> None:
        """Have one part written, judged and stored."""
        if self.has_given_up:
            self.result.unsent += len(part.tools)
            return
        try:
            offered = await self._asked(part, prompt(part, self._languages))
        except WriterError as error:
            self._failed_in_a_row += 1
            self.result.failures.append(_told(part.server, error))
            self.result.unsent += len(part.tools)
            return
        self._failed_in_a_row = 0
        kept, dropped = await self._judged(part, offered, {})
        if lacking := self._lacking(part, kept):
            kept |= await self._again(part, lacking, kept, dropped)
        await anyio.to_thread.run_sync(self._keep, part, kept)

    async def _asked(self, part: Part, asked: str) -> Mapping[str, Sequence[str]]:
        """Return the requests written for a batch of tools, by definition; an unreadable answer is asked for again."""
        reply = await self._reply(part, asked)
        if reply.problem:
            reply = await self._reply(part, prompt_repaired(asked, reply.problem))
        if reply.problem:
            raise WriterError(f"the answer cannot be read: {reply.problem}")
        return reply.requests

    async def _reply(self, part: Part, asked: str) -> Reply:
        answer = await self._writer.write(asked)
        self.result.count(answer, self._count_tokens, asked)
        reply = read_reply(answer.text, part, self._languages)
        self._unread.update(" ".join(text.split()) for text in reply.unread)
        return reply

    async def _judged(
        self, part: Part, offered: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, tuple[str, ...]], tuple[DroppedRequest, ...]]:
        """Return the requests that pass, including earlier ones, by tool key, and those that do not."""
        sifted = await anyio.to_thread.run_sync(self._judge, part, offered, before)
        self.result.dropped.update(each.gate.value for each in sifted.dropped)
        return sifted.kept, sifted.dropped

    def _judge(
        self, part: Part, offered: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
    ) -> SiftedRequests:
        most = wanted_requests(self._languages)
        tools = [tool for tool in part.tools if tool.digest in offered]
        had = {tool.key: tuple(before.get(tool.key, ())) for tool in tools}
        # What is offered beyond what was asked for is none of what the model thought of first.
        chosen = [offered[tool.digest][: most - len(had[tool.key])] for tool in tools]
        sound = sound_lists(chosen)
        self.result.written += (written := sum(map(len, chosen)))
        self.result.dropped["it is unsafe, too long, or there twice"] += written - sum(map(len, sound))
        texts = {tool.key: (*had[tool.key], *fresh) for tool, fresh in zip(tools, sound, strict=True)}
        return sift(self._catalog, texts, self._embedder, self._cache, self._unread)

    def _lacking(self, part: Part, kept: Mapping[str, Sequence[str]]) -> list[PromptDefinition]:
        least = ENOUGH * wanted_requests(self._languages)
        return [tool for tool in part.tools if len(kept.get(tool.key, ())) < least]

    async def _again(
        self,
        part: Part,
        lacking: Sequence[PromptDefinition],
        kept: Mapping[str, Sequence[str]],
        dropped: Sequence[DroppedRequest],
    ) -> dict[str, tuple[str, ...]]:
        """Ask once more for tools that lack requests; where that fails, what passed is enough."""
        others = (*(tool for tool in part.tools if tool not in lacking), *part.siblings)
        rest = replace(part, tools=tuple(lacking), siblings=others)
        try:
            offered = await self._asked(rest, prompt_again(rest, self._languages, kept, dropped))
        except WriterError as error:
            self.result.failures.append(_told(f"{part.server}, asked once more", error))
            return {}
        return (await self._judged(rest, offered, kept))[0]

    def _keep(self, part: Part, kept: Mapping[str, tuple[str, ...]]) -> None:
        """Store what passed; what was tried is not tried again."""
        entries = [
            LibraryEntry(tool.digest, tool.name, tool.server, RequestOrigin.OWNER, kept[tool.key])
            for tool in part.tools
            if kept.get(tool.key)
        ]
        self._library.put_all(entries)
        self._tried.add([tool.digest for tool in part.tools])
        self.result.tools += len(entries)
        self.result.left += len(part.tools) - len(entries)
        self.result.kept += sum(len(entry.requests) for entry in entries)
        self._catalog = [replace(tool, requests=kept.get(tool.key) or tool.requests) for tool in self._catalog]


def _told(what: str, error: WriterError) -> str:
    return f"{what}: {error.message}{'; ' if error.hint else ''}{error.hint}"


def expected_tokens(part: Part, languages: Sequence[str], count_tokens: TokenCounter) -> tuple[int, int]:
    """Tokens of a part's prompt and of the answer that is expected; what is asked once more comes on top."""
    return count_tokens(prompt(part, languages)), answer_tokens(part, languages)
