"""`pml enrich`: the owner's own language model writes what people ask for when they need a tool."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import typer

from pml_gateway.cli import requests
from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import ExitCode, messages, note, print_json, print_table, refuse_unasked, say, warn
from pml_gateway.errors import ConfigurationError, GatewayError, InvalidInputError
from pml_gateway.text import counted, suggestion
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.catalog.model import CatalogTool
    from pml_gateway.config.settings import EnrichSettings
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.index.text import ToolDocument
    from pml_gateway.processes.children import Children
    from pml_gateway.requests.enrichment import Enrichment, EnrichmentAttempt, EnrichmentPlan, WrittenRequests
    from pml_gateway.requests.library import ExampleRequest, RequestLibrary
    from pml_gateway.requests.writers import Writer
    from pml_gateway.requests.writing import PromptDefinition

SENT = "names, descriptions, and parameters' names and descriptions; no arguments, results, values or secrets"
AGAIN = "what does not pass the gates is asked for once more, which comes on top"
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class _Wish:
    """Options of the command line."""

    servers: tuple[str, ...]
    writer: str | None
    everything: bool
    with_shipped: bool
    auto: bool
    dry_run: bool
    show_prompt: bool
    yes: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """Known requests of the tools that may be sent."""

    definitions: tuple[PromptDefinition, ...]
    documents: tuple[ToolDocument, ...]
    requests: dict[str, tuple[ExampleRequest, ...]]
    flagged: Counter[str]
    """Of each server, how many are not sent."""


def enrich(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="SERVER", help="All by default.", autocompletion=server_names)
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(
            "--writer",
            metavar="COMMAND",
            help="claude, codex, gemini, llm, a whole command line, or sampling: a client.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All tools, not only new and changed ones; replaces what there is.")
    ] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="Also tools that shipped requests cover.")] = False,
    auto: Annotated[
        bool, typer.Option("--auto", help="For cron: ask nothing, say little; the writer must be configured.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and end.")] = False,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print all that would be sent, and end.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Send without asking.")] = False,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write what there is, for others; sends nothing.")
    ] = None,
    import_from: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Add what others exported; sends nothing.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let your own language model write what people ask for when they need a tool, so that search finds it.

    Each tool gets eight such texts, made from its definition alone, judged on this machine, and used for search only.
    It shows what would be sent to whom, and asks. What is stored stays when it is interrupted, and it goes on there.

    Example: pml enrich github --writer "claude -p"
    """
    if export_to is not None and import_from is not None:
        raise typer.BadParameter("give either --export or --import", param_hint="--export")
    if export_to is not None:
        requests.export(export_to, config=config, as_json=as_json)
        return
    if import_from is not None:
        requests.import_requests(import_from, config=config, as_json=as_json)
        return
    wish = _Wish(tuple(servers or ()), writer, everything, shipped, auto, dry_run, show_prompt, yes, as_json)
    command = Command(config, as_json=as_json)
    try:
        code = command.run(lambda: _enrich(command, wish))
    except KeyboardInterrupt:
        note(f"interrupted; what was done is stored, and {_next(wish)} goes on from there")
        raise
    if code:
        raise typer.Exit(code)


async def _enrich(command: Command, wish: _Wish) -> ExitCode:
    from pml_gateway.exposure.token_count import count_tokens
    from pml_gateway.processes.children import open_children
    from pml_gateway.requests.enrichment import EnrichmentAttempt, plan
    from pml_gateway.requests.library import RequestLibrary
    from pml_gateway.requests.writers import is_configured

    settings = command.load().settings
    if wish.auto and not wish.writer and not is_configured(settings.enrich):
        raise ConfigurationError(
            "--auto sends nothing to a language model that you did not name",
            hint="set enrich.command or enrich.endpoint; pml docs enrich says how",
        )
    for server in wish.servers:
        if server not in settings.servers:
            raise InvalidInputError(f"there is no server {server!r}{suggestion(server, settings.servers)}")
    known = await _known(command)
    library, tried = RequestLibrary(command.paths.requests_dir), EnrichmentAttempt(command.paths.requests_dir)
    chosen = plan(
        known.definitions,
        known.requests,
        tried.read(),
        only=wish.servers,
        everything=wish.everything,
        with_shipped=wish.with_shipped,
    )
    everything = chosen.digests if wish.everything else []
    if wish.auto:
        chosen = _within(chosen, settings.enrich, count_tokens)
    with open_children() as children:
        told, asked = await _writer(command, children, wish, chosen)
        shown = _as_json(
            chosen, known, settings.enrich, told, count_tokens, only=wish.servers, with_prompts=wish.show_prompt
        )
        if not wish.auto and not wish.as_json:
            _show(shown, wish)
        if wish.show_prompt or wish.dry_run or not chosen.parts:
            if wish.as_json:
                print_json(shown)
            return ExitCode.OK
        if asked is None:
            assert isinstance(told, GatewayError)
            raise told
        if not (wish.yes or wish.auto) and not _has_leave(wish, shown, asked.label):
            return ExitCode.OK
        enrichment = await _prepared(command, asked, library, tried, known, count_tokens)
        with _alone(command) as is_alone:
            if not is_alone:
                raise GatewayError("another pml enrich is running", hint="wait for it; it stores what it has done")
            if everything:
                await anyio.to_thread.run_sync(tried.want, everything)
            with _progress(chosen, hidden=wish.auto or wish.as_json) as step:
                for part in chosen.parts:
                    await enrichment.write(part)
                    step(len(part.tools))
    return _tell(enrichment.result, shown, settings.enrich, wish)


async def _known(command: Command) -> _Known:
    """Return the tools that may be sent: those the owner's own clients see, but for what the lint warns of."""
    from pml_gateway.gateway.state import documents
    from pml_gateway.policy.client import LOCAL
    from pml_gateway.requests.sources import tool_digest

    async with command_gateway(command, of_all=True) as gateway:
        state = await gateway.wait_for_tools()
        catalog = state.catalog
        tools = state.view(LOCAL).searchable
        asked = await anyio.to_thread.run_sync(gateway.requests.of, catalog.tools, state.settings.servers)
        found = {tool.qualified_name: each for tool, each in zip(catalog.tools, asked, strict=True)}
        requests = [found[tool.qualified_name] for tool in tools]
        sent = [tool for tool in tools if not _is_flagged(gateway, tool.upstream_id, tool.name)]
        return _Known(
            definitions=tuple(_definition(tool_digest(tool), tool) for tool in sent),
            documents=tuple(documents(tools, catalog.ownership, requests)),
            requests={tool_digest(tool): each for tool, each in zip(tools, requests, strict=True) if each},
            flagged=Counter(tool.upstream_id for tool in tools) - Counter(tool.upstream_id for tool in sent),
        )


def _definition(digest: str, tool: CatalogTool) -> PromptDefinition:
    from pml_gateway.requests.writing import PromptDefinition

    properties = tool.definition["inputSchema"].get("properties")
    parameters = properties.items() if isinstance(properties, dict) else ()
    return PromptDefinition(
        digest=digest,
        key=tool.qualified_name,
        server=tool.upstream_id,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        parameters=tuple((str(name), _description(each)) for name, each in parameters),
    )


def _is_flagged(gateway: Gateway, server: str, name: str) -> bool:
    from pml_gateway.trust.verdict import SubjectKind

    pins = gateway.trust_gate.servers.get(server)
    form = pins.latest((SubjectKind.TOOL, name)) if pins is not None else None
    return form is not None and form.is_flagged


def _description(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""


def _within(chosen: EnrichmentPlan, settings: EnrichSettings, count: Callable[[str], int]) -> EnrichmentPlan:
    """As much of a plan as a run that nobody watches may send."""
    from pml_gateway.requests.enrichment import expected_tokens

    left, parts = settings.max_tokens, []
    for part in chosen.parts:
        left -= sum(expected_tokens(part, settings.languages, count))
        if left < 0:
            break
        parts.append(part)
    if chosen.parts and not parts:
        raise ConfigurationError(
            f"one prompt takes more than enrich.max_tokens, {settings.max_tokens:,}", hint="raise enrich.max_tokens"
        )
    unsent = sum(len(part.tools) for part in chosen.parts[len(parts) :])
    left_out = {**chosen.left_out, **({"for the next run": unsent} if unsent else {})}
    return replace(chosen, parts=tuple(parts), left_out=left_out)


async def _writer(
    command: Command, children: Children, wish: _Wish, chosen: EnrichmentPlan
) -> tuple[str | GatewayError, Writer | None]:
    """Return the description of the writer, and the writer, or why there is none if a preview needs none."""
    from pml_gateway.requests.writers import names_client, writer_of
    from pml_gateway.requests.writing import answer_tokens
    from pml_gateway.serve.client_writer import client_writer

    settings = command.load().settings.enrich
    writer: Writer
    try:
        if names_client(settings, wish.writer):
            expected = max((answer_tokens(part, settings.languages) for part in chosen.parts), default=0)
            writer = await client_writer(command.paths, command.identity, expected, settings.timeout)
        else:
            writer = writer_of(settings, children, chosen=wish.writer)
    except GatewayError as error:
        return error, None
    return writer.label, writer


def _as_json(
    chosen: EnrichmentPlan,
    known: _Known,
    settings: EnrichSettings,
    told: str | GatewayError,
    count: Callable[[str], int],
    *,
    only: Sequence[str],
    with_prompts: bool,
) -> JsonObject:
    """Show what would be sent, and to which writer."""
    from pml_gateway.requests.enrichment import expected_tokens
    from pml_gateway.requests.writing import prompt

    servers: dict[str, Counter[str]] = {}
    for part in chosen.parts:
        read, written = expected_tokens(part, settings.languages, count)
        servers.setdefault(part.server, Counter()).update(
            tools=len(part.tools), prompts=1, input_tokens=read, output_tokens=written
        )
    total: Counter[str] = sum(servers.values(), Counter())
    flagged = sum(count for server, count in known.flagged.items() if not only or server in only)
    left_out = {**chosen.left_out, **({"flagged by the lint (pml trust)": flagged} if flagged else {})}
    return {
        "writer": told if isinstance(told, str) else None,
        **({"problem": told.message} if isinstance(told, GatewayError) else {}),
        "languages": list(settings.languages),
        "sent": SENT,
        "servers": [{"server": server, **counts} for server, counts in servers.items()],
        **{name: total[name] for name in ("tools", "prompts", "input_tokens", "output_tokens")},
        "cost": _cost(total["input_tokens"], total["output_tokens"], settings),
        "left_out": left_out,
        **({"sent_text": [prompt(part, settings.languages) for part in chosen.parts]} if with_prompts else {}),
    }


def _next(wish: _Wish) -> str:
    return "the next run without --all" if wish.everything else "the next run"


def _cost(read: int, written: int, settings: EnrichSettings) -> float | None:
    if settings.input_price is None or settings.output_price is None:
        return None
    return round((read * settings.input_price + written * settings.output_price) / MILLION, 4)


def _money(cost: float) -> str:
    """With cents, and what is less than a tenth with more."""
    return f"{cost:,.2f}" if cost >= 0.1 else f"{cost:.4f}"


def _show(shown: JsonObject, wish: _Wish) -> None:
    if wish.show_prompt:
        for number, text in enumerate(shown["sent_text"], 1):
            say(f"--- prompt {number} of {shown['prompts']}", style="dim")
            say(text)
        return
    if shown["servers"]:
        columns = ("server", "tools", "prompts", "tokens sent", "tokens written")
        rows = [
            (row["server"], *(f"{row[name]:,}" for name in ("tools", "prompts", "input_tokens", "output_tokens")))
            for row in shown["servers"]
        ]
        print_table(columns, rows)
        say()
        say(f"written by: {shown['writer'] or 'no writer yet: ' + shown['problem']}")
        say(f"sent:       {SENT}")
        say(f"languages:  {', '.join(shown['languages'])}")
        cost = "" if shown["cost"] is None else f", which cost {_money(shown['cost'])}"
        say(f"expected:   {shown['input_tokens']:,} tokens sent, {shown['output_tokens']:,} written{cost}; {AGAIN}")
    else:
        say("there is nothing to write for")
    for reason, tools in shown["left_out"].items():
        say(f"left out:   {counted(tools, 'tool')} {reason}", style="dim")


def _has_leave(wish: _Wish, shown: JsonObject, label: str) -> bool:
    """Ask; without anybody to ask, the command ends."""
    if wish.as_json or not sys.stdin.isatty():
        if wish.as_json:
            print_json(shown)
        refuse_unasked(as_json=wish.as_json, done="sent", remedy="--yes to send this, or with --dry-run to look only")
    return typer.confirm(f"Send this to {label}?", default=False, err=True)


async def _prepared(
    command: Command,
    writer: Writer,
    library: RequestLibrary,
    tried: EnrichmentAttempt,
    known: _Known,
    count: Callable[[str], int],
) -> Enrichment:
    """Everything that writing needs; the gates take the model of search."""
    from pml_gateway.index import EmbeddingCache, load_embedder
    from pml_gateway.requests.enrichment import Enrichment

    settings = command.load().settings
    return Enrichment(
        writer,
        library,
        tried,
        known.documents,
        await anyio.to_thread.run_sync(load_embedder, settings.search.model),
        cache=EmbeddingCache.of_catalog(command.paths.cache_dir, len(known.documents)),
        languages=settings.enrich.languages,
        count_tokens=count,
    )


@contextmanager
def _alone(command: Command) -> Iterator[bool]:
    """Hold the lock of this home; False if another process writes, which would pay for the same again."""
    from pml_gateway.files import lock_if_free, make_private

    folder = command.paths.requests_dir
    with ExitStack() as stack:
        try:
            make_private(folder)
            is_held = stack.enter_context(lock_if_free(folder / "enrich"))
        except OSError as error:
            raise GatewayError(
                f"{folder} cannot be written: {error}", hint="set PML_HOME to a folder of your own"
            ) from None
        yield is_held


@contextmanager
def _progress(chosen: EnrichmentPlan, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, and yield a function that advances it by a number of tools."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = messages()
    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TextColumn("tools"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("", total=chosen.tools)
        yield partial(progress.advance, task)


def _tell(result: WrittenRequests, shown: JsonObject, settings: EnrichSettings, wish: _Wish) -> ExitCode:
    """Say what became of it."""
    cost = _cost(result.input_tokens, result.output_tokens, settings)
    dropped = {reason: number for reason, number in result.dropped.items() if number}
    if wish.as_json:
        report = {
            "tools": result.tools,
            "written": result.written,
            "kept": result.kept,
            "dropped": dropped,
            "left": result.left,
            "unsent": result.unsent,
            "prompts": result.prompts,
            "input_tokens": result.input_tokens,
            "output_tokens": result.output_tokens,
            "cost": cost,
            "failures": result.failures,
        }
        print_json({**shown, "result": report})
    else:
        for failure in result.failures:
            warn(failure)
        paid = "" if cost is None else f", which cost {_money(cost)}"
        say(
            f"{counted(result.tools, 'tool')} with {counted(result.kept, 'request')}, of {result.written:,} written in "
            f"{counted(result.prompts, 'prompt')}; {result.input_tokens + result.output_tokens:,} tokens{paid}"
        )
        for reason, number in sorted(dropped.items(), key=lambda each: -each[1]):
            say(f"dropped: {number:,}, for {reason}", style="dim")
        if result.left:
            say(f"{counted(result.left, 'tool')} without any, as none passed; --all tries again", style="dim")
        if result.unsent:
            say(f"{counted(result.unsent, 'tool')} not written for; {_next(wish)} goes on with them")
    return ExitCode.FAILED if result.unsent else ExitCode.OK
