"""Enrichment: which tools are written for, prompt by prompt, and what becomes of what was written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import anyio.to_thread

from pml_gateway.config.settings import EnrichSettings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.example_queries.gates import DroppedExample, SiftedExamples, sift
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, ExampleQuery, LibraryEntry, sound_lists
from pml_gateway.example_queries.writers import Answer, Writer, WriterError
from pml_gateway.example_queries.writing import (
    Part,
    PromptDefinition,
    Reply,
    answer_tokens,
    parts,
    prompt,
    prompt_again,
    prompt_repaired,
    read_reply,
    wanted_examples,
)
from pml_gateway.files import lock_if_free, make_private
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.text import ToolDocument
from pml_gateway.log import get_logger
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed

logger = get_logger(__name__)

ENOUGH = 0.75
"""Share of the examples of a tool that is enough: for one that is missing, a prompt is not sent again."""

FAILURES = 3
"""Prompts in a row without an answer, after which the rest is left: the next ones would cost as much for nothing."""

MAX_TRIED = 50_000

WANTED = 0
"""Instead of the day: what is there is to be written anew, and was not yet."""

FLAGGED = "flagged by the lint (pml trust)"

TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class SendableTools:
    """All tools as documents, with their examples by definition, and the definitions that may be sent."""

    definitions: tuple[PromptDefinition, ...]
    documents: tuple[ToolDocument, ...]
    examples: dict[str, tuple[ExampleQuery, ...]]
    flagged: dict[str, int]
    """Number of tools of each server that may not be sent."""


@dataclass(frozen=True, slots=True)
class EnrichmentPlan:
    """Tools to send, and the number of tools left out, by reason."""

    parts: tuple[Part, ...]
    left_out: Mapping[str, int]

    @property
    def tools(self) -> int:
        """Return the number of tools to write examples for."""
        return sum(len(part.tools) for part in self.parts)

    @property
    def digests(self) -> list[str]:
        """The definitions that are written for."""
        return [tool.digest for part in self.parts for tool in part.tools]

    def expected(self, languages: Sequence[str], count_tokens: TokenCounter) -> dict[str, Counter[str]]:
        """Return `tools`, `prompts`, `input_tokens` and `output_tokens` of each server, without second prompts."""
        servers: dict[str, Counter[str]] = {}
        for part in self.parts:
            servers.setdefault(part.server, Counter()).update(
                tools=len(part.tools),
                prompts=1,
                input_tokens=count_tokens(prompt(part, languages)),
                output_tokens=answer_tokens(part, languages),
            )
        return servers

    def limited(self, settings: EnrichSettings, count_tokens: TokenCounter) -> EnrichmentPlan:
        """Return the first parts that together take at most `max_tokens`.

        Raises:
            ConfigurationError: the first part alone takes more.
        """
        left, chosen = settings.max_tokens, 0
        for part in self.parts:
            left -= count_tokens(prompt(part, settings.languages)) + answer_tokens(part, settings.languages)
            if left < 0:
                break
            chosen += 1
        if self.parts and not chosen:
            raise ConfigurationError(
                f"one prompt takes more than enrich.max_tokens, {settings.max_tokens:,}", hint="raise enrich.max_tokens"
            )
        unsent = sum(len(part.tools) for part in self.parts[chosen:])
        left_out = {**self.left_out, **({"for the next run": unsent} if unsent else {})}
        return replace(self, parts=self.parts[:chosen], left_out=left_out)


def plan(
    definitions: Sequence[PromptDefinition],
    known: Mapping[str, Sequence[ExampleQuery]],
    tried: Mapping[str, int],
    *,
    flagged: Mapping[str, int] = MappingProxyType({}),
    only: Collection[str] = (),
    everything: bool = False,
    with_shipped: bool = False,
) -> EnrichmentPlan:
    """Decide what is written for.

    Args:
        definitions: of all tools that may be sent.
        known: the examples of each definition that has any.
        tried: definitions that were written for before, with the day, or `WANTED`.
        flagged: the number of tools of each server that may not be sent.
        only: servers; all where none is named.
        everything: also what was written for before.
        with_shipped: also what shipped examples cover.
    """
    wanted: set[str] = set()
    left_out: Counter[str] = Counter()
    for each in definitions:
        if only and each.server not in only:
            continue
        origins = {example.origin for example in known.get(each.digest, ())}
        if each.digest in wanted:
            left_out["defined as another one"] += 1
        elif everything or tried.get(each.digest) == WANTED:
            wanted.add(each.digest)
        elif ExampleOrigin.OWNER in origins or each.digest in tried:
            left_out["written for before"] += 1
        elif not with_shipped and ExampleOrigin.SHIPPED in origins:
            left_out["covered by shipped examples"] += 1
        else:
            wanted.add(each.digest)
    left_out.update({FLAGGED: sum(count for server, count in flagged.items() if not only or server in only)})
    chosen = [part for part in parts(definitions, frozenset(wanted)) if not only or part.server in only]
    return EnrichmentPlan(tuple(chosen), +left_out)


@dataclass(slots=True)
class WrittenExamples:
    """Counts of examples so far."""

    tools: int = 0
    written: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Tools without any example after all."""
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
        self._document = Document(
            kinds.TRIED,
            directory / "tried.json",
            decode=lambda content: {str(key): int(day) for key, day in parsed(content).items()},
            encode=compact,
            empty=dict[str, int],
        )

    def read(self) -> dict[str, int]:
        """Return the digests with the days on which they were tried, or `WANTED`."""
        return self._document.read()

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of enrichment: a second process would pay for the same again.

        Raises:
            GatewayError: another process holds it, or the folder cannot be written.
        """
        folder = self._document.path.parent
        with ExitStack() as stack:
            try:
                make_private(folder)
                is_held = stack.enter_context(lock_if_free(folder / "enrich"))
            except OSError as error:
                raise GatewayError(
                    f"{folder} cannot be written: {error}", hint="set PML_HOME to a folder of your own"
                ) from None
            if not is_held:
                raise GatewayError("another pml enrich is running", hint="wait for it; it stores what it has done")
            yield

    def _note(self, digests: Collection[str], day: int) -> None:
        def update(tried: dict[str, int]) -> dict[str, int]:
            newest = sorted((tried | dict.fromkeys(digests, day)).items(), key=lambda each: each[1])
            return dict(newest[-MAX_TRIED:])

        try:
            self._document.change(update)
        except OSError as error:
            raise GatewayError(f"{self._document.path} cannot be written: {error}") from None


class Enrichment:
    """Writes for the parts of a plan, one after the other; each is stored when it is done."""

    def __init__(
        self,
        writer: Writer,
        library: ExampleLibrary,
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
            library: where examples are kept.
            tried: what is not to be tried again.
            catalog: all tools, with the examples that they have.
            embedder: the model of search.
            cache: of embeddings.
            languages: what examples are written in.
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
        self.result = WrittenExamples()

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
        """Return the examples written for a batch of tools, by definition; an unreadable answer is asked for again."""
        reply = await self._reply(part, asked)
        if reply.problem:
            reply = await self._reply(part, prompt_repaired(asked, reply.problem))
        if reply.problem:
            raise WriterError(f"the answer cannot be read: {reply.problem}")
        return reply.examples

    async def _reply(self, part: Part, asked: str) -> Reply:
        answer = await self._writer.write(asked)
        self.result.count(answer, self._count_tokens, asked)
        reply = read_reply(answer.text, part, self._languages)
        self._unread.update(" ".join(text.split()) for text in reply.unread)
        return reply

    async def _judged(
        self, part: Part, offered: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, tuple[str, ...]], tuple[DroppedExample, ...]]:
        """Return the examples that pass, including earlier ones, by tool key, and those that do not."""
        sifted = await anyio.to_thread.run_sync(self._judge, part, offered, before)
        self.result.dropped.update(each.gate.value for each in sifted.dropped)
        return sifted.kept, sifted.dropped

    def _judge(
        self, part: Part, offered: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]
    ) -> SiftedExamples:
        most = wanted_examples(self._languages)
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
        least = ENOUGH * wanted_examples(self._languages)
        return [tool for tool in part.tools if len(kept.get(tool.key, ())) < least]

    async def _again(
        self,
        part: Part,
        lacking: Sequence[PromptDefinition],
        kept: Mapping[str, Sequence[str]],
        dropped: Sequence[DroppedExample],
    ) -> dict[str, tuple[str, ...]]:
        """Ask once more for tools that lack examples; where that fails, what passed is enough."""
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
            LibraryEntry(tool.digest, tool.name, tool.server, ExampleOrigin.OWNER, kept[tool.key])
            for tool in part.tools
            if kept.get(tool.key)
        ]
        self._library.put_all(entries)
        self._tried.add([tool.digest for tool in part.tools])
        self.result.tools += len(entries)
        self.result.left += len(part.tools) - len(entries)
        self.result.kept += sum(len(entry.examples) for entry in entries)
        self._catalog = [replace(tool, examples=kept.get(tool.key) or tool.examples) for tool in self._catalog]


def _told(what: str, error: WriterError) -> str:
    return f"{what}: {error.message}{'; ' if error.hint else ''}{error.hint}"
