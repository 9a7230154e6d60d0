"""`pml enrich`: the owner's own language model writes what people ask for when they need a tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.consent import Consent
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, messages, note, print_json, print_table, say, warn
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.owner.operations import SENDABLE_TOOLS
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.config.settings import EnrichSettings, Settings
    from pml_gateway.example_queries.enrichment import EnrichmentPlan, SendableTools, WrittenExamples
    from pml_gateway.example_queries.writers import Writer

SENT = "names, descriptions, and parameters' names and descriptions; no arguments, results, values or secrets"
AGAIN = "what does not pass the gates is asked for once more, which comes on top"


@dataclass(frozen=True, slots=True)
class _Options:
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


def enrich(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="SERVER", help="All by default.", autocompletion=server_names)
    ] = None,
    writer: Annotated[
        str | None,
        typer.Option(
            "--writer",
            metavar="COMMAND",
            help="claude, codex, gemini, llm, or a whole command line.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All tools, not only new and changed ones; replaces what there is.")
    ] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="Also tools that shipped examples cover.")] = False,
    auto: Annotated[
        bool, typer.Option("--auto", help="For cron: ask nothing, say little; the writer must be configured.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and end.")] = False,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print all that would be sent, and end.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Send without asking.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let your own language model write what people ask for when they need a tool, so that search finds it.

    Each tool gets eight such texts, made from its definition alone, judged on this machine, and used for search only.
    It shows what would be sent to whom, and asks. What is stored stays when it is interrupted, and it goes on there.

    Example: pml enrich github --writer "claude -p"
    """
    options = _Options(tuple(servers or ()), writer, everything, shipped, auto, dry_run, show_prompt, yes, as_json)
    command = Command(config, as_json=as_json)
    try:
        settings = _checked(command, options)
        known = command.ask(SENDABLE_TOOLS)
        code = command.run(lambda: _enrich(command, options, settings, known))
    except KeyboardInterrupt:
        note(f"interrupted; what was done is stored, and {_next(options)} goes on from there")
        raise
    if code:
        raise typer.Exit(code)


def _checked(command: Command, options: _Options) -> Settings:
    from pml_gateway.config.problems import server_entry
    from pml_gateway.example_queries.writers import is_configured

    settings = command.load().settings
    if options.auto and not options.writer and not is_configured(settings.enrich):
        raise ConfigurationError(
            "--auto sends nothing to a language model that you did not name",
            hint="set enrich.command or enrich.endpoint; pml docs enrich says how",
        )
    for server in options.servers:
        server_entry(settings, server)
    return settings


async def _enrich(command: Command, options: _Options, settings: Settings, known: SendableTools) -> ExitCode:
    from pml_gateway.example_queries.enrichment import Enrichment, EnrichmentAttempt, plan
    from pml_gateway.example_queries.library import ExampleLibrary
    from pml_gateway.example_queries.writers import writer_of
    from pml_gateway.exposure.token_count import count_tokens
    from pml_gateway.index.cache import EmbeddingCache
    from pml_gateway.index.models import load_embedder
    from pml_gateway.processes.children import open_children

    paths = command.paths
    library = ExampleLibrary(paths.example_queries_dir, command.shared_documents())
    tried = EnrichmentAttempt(paths.example_queries_dir)
    chosen = plan(
        known.definitions,
        known.examples,
        tried.read(),
        flagged=known.flagged,
        only=options.servers,
        everything=options.everything,
        with_shipped=options.with_shipped,
    )
    everything = chosen.digests if options.everything else []
    if options.auto:
        chosen = chosen.limited(settings.enrich, count_tokens)
    with open_children() as children:
        writer: Writer | GatewayError
        try:
            writer = writer_of(settings.enrich, children, chosen=options.writer)
        except GatewayError as error:
            writer = error
        shown = _preview(chosen, settings.enrich, writer, count_tokens, with_prompts=options.show_prompt)
        if not options.auto and not options.as_json:
            _show(shown, options)
        if options.show_prompt or options.dry_run or not chosen.parts:
            if options.as_json:
                print_json(shown)
            return ExitCode.OK
        if isinstance(writer, GatewayError):
            raise writer
        if not (options.yes or options.auto) and not _has_leave(options, shown, writer.label):
            return ExitCode.OK
        enrichment = Enrichment(
            writer,
            library,
            tried,
            known.documents,
            await anyio.to_thread.run_sync(load_embedder, settings.search.model),
            cache=EmbeddingCache.of_catalog(paths.cache_dir, len(known.documents)),
            languages=settings.enrich.languages,
            count_tokens=count_tokens,
        )
        with tried.alone(), _progress(chosen, hidden=options.auto or options.as_json) as step:
            if everything:
                await anyio.to_thread.run_sync(tried.want, everything)
            for part in chosen.parts:
                await enrichment.write(part)
                step(len(part.tools))
    return _tell(enrichment.result, shown, options)


def _preview(
    chosen: EnrichmentPlan,
    settings: EnrichSettings,
    writer: Writer | GatewayError,
    count: Callable[[str], int],
    *,
    with_prompts: bool,
) -> JsonObject:
    """Return what would be sent, and to which writer."""
    from pml_gateway.example_queries.writing import prompt

    servers = chosen.expected(settings.languages, count)
    total: Counter[str] = sum(servers.values(), Counter())
    return {
        "writer": None if isinstance(writer, GatewayError) else writer.label,
        **({"problem": writer.message} if isinstance(writer, GatewayError) else {}),
        "languages": list(settings.languages),
        "sent": SENT,
        "servers": [{"server": server, **counts} for server, counts in servers.items()],
        **{name: total[name] for name in ("tools", "prompts", "input_tokens", "output_tokens")},
        "left_out": dict(chosen.left_out),
        **({"sent_text": [prompt(part, settings.languages) for part in chosen.parts]} if with_prompts else {}),
    }


def _next(options: _Options) -> str:
    return "the next run without --all" if options.everything else "the next run"


def _show(shown: JsonObject, options: _Options) -> None:
    if options.show_prompt:
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
        say(f"expected:   {shown['input_tokens']:,} tokens sent, {shown['output_tokens']:,} written; {AGAIN}")
    else:
        say("there is nothing to write for")
    for reason, tools in shown["left_out"].items():
        say(f"left out:   {counted(tools, 'tool')} {reason}", style="dim")


def _has_leave(options: _Options, shown: JsonObject, label: str) -> bool:
    """Ask; without anybody to ask, the command ends."""
    asked = Consent(yes=False, as_json=options.as_json)
    if options.as_json:
        print_json(shown)
    asked.refuse_if_impossible(done="sent", remedy="--yes to send this, or with --dry-run to look only")
    return asked.agrees(f"Send this to {label}?", default=False)


@contextmanager
def _progress(chosen: EnrichmentPlan, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, and yield a function that advances it by a number of tools."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = messages()
    columns = (TextColumn("writing"), BarColumn(), MofNCompleteColumn(), TextColumn("tools"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("", total=chosen.tools)
        yield partial(progress.advance, task)


def _tell(result: WrittenExamples, shown: JsonObject, options: _Options) -> ExitCode:
    """Say what became of it."""
    report = {each.name: getattr(result, each.name) for each in fields(result)}
    dropped = {reason: number for reason, number in result.dropped.items() if number}
    if options.as_json:
        print_json({**shown, "result": {**report, "dropped": dropped}})
    else:
        for failure in result.failures:
            warn(failure)
        say(
            f"{counted(result.tools, 'tool')} with {counted(result.kept, 'example')}, of {result.written:,} written in "
            f"{counted(result.prompts, 'prompt')}; {result.input_tokens + result.output_tokens:,} tokens"
        )
        for reason, number in sorted(dropped.items(), key=lambda each: -each[1]):
            say(f"dropped: {number:,}, for {reason}", style="dim")
        if result.left:
            say(f"{counted(result.left, 'tool')} without any, as none passed; --all tries again", style="dim")
        if result.unsent:
            say(f"{counted(result.unsent, 'tool')} not written for; {_next(options)} goes on with them")
    return ExitCode.FAILED if result.unsent else ExitCode.OK
