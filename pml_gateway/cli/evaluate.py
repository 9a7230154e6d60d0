"""`pml eval`: how well search finds tools, of labelled files or of the user's own catalog."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import fail, note, print_json, print_table, say, warn
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.files import usual_mode, write_atomically
from pml_gateway.paths import Paths
from pml_gateway.text import counted, plural_of
from pml_gateway.types import JsonObject, Ranking

if TYPE_CHECKING:
    from pml_gateway.index.evaluation import HardTool, LabelledQuery, QueryOutcome
    from pml_gateway.reports.search_quality import MeasuredIndex

MEANINGS = {
    "n": "queries measured",
    "with_requests": "tools of which requests are known",
    "recall@1": "needed tools that are the first hit",
    "recall": "needed tools that are among the first {} hits",
    "ndcg": "how high they stand among the first {}: 100% is all at the top",
    "mrr": "how high the first right tool stands: 100% is first, 50% second",
    "hit": "queries with a right tool among the first {} hits",
    "all_gold": "queries with every tool they need among the first {} hits",
    "coverage": "needed tools that score at least {}, and so would be listed",
    "list_median": "tools listed from a score of {} (the median, at most 20)",
    "empty_rate": "queries that find nothing at all",
    "tokens_5_hits": "tokens of an answer with five hits",
    "p50_ms": "half of the searches were as fast",
    "p99_ms": "99 of a hundred searches were as fast",
    "model": "what compares meanings",
    "ranking": "the evidence that orders hits",
}
"""Explanation of each figure, by its name or the part before the `@`."""

COUNTED = ("n", "with_requests", "list_median", "tokens_5_hits")
"""Figures that are no shares."""

QUERY_FILE = "eval.jsonl"
INDEX_SECONDS = 120

eval_app = typer.Typer(name="eval", no_args_is_help=False)

ToolsOption = Annotated[
    Path | None, typer.Option("--tools", metavar="FILE", help="Tools (JSONL) instead of the own catalog.")
]
QueriesOption = Annotated[
    Path | None, typer.Option("--queries", metavar="FILE", help="Queries with their right tools (JSONL).")
]


@eval_app.callback(invoke_without_command=True)
def evaluate(
    context: typer.Context,
    tools: ToolsOption = None,
    queries: QueriesOption = None,
    distractors: Annotated[
        Path | None, typer.Option("--distractors", metavar="FILE", help="Tools that no query needs (JSONL).")
    ] = None,
    ranking: Annotated[
        Ranking | None, typer.Option("--ranking", help="The evidence that orders hits; fused, or as configured.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option("--requests", metavar="FILE", help="With --tools: what tools are asked (JSONL).")
    ] = None,
    requests_share: Annotated[
        float | None,
        typer.Option("--requests-share", metavar="SHARE", help="Keep the requests of this share of the tools only."),
    ] = None,
    requests_seed: Annotated[int, typer.Option("--requests-seed", help="Which tools the share is made of.")] = 0,
    model: Annotated[
        str | None, typer.Option("--model", help="With --tools: builtin (default), a directory, or a name.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how well search finds tools: labelled files, or the own catalog and the queries of `pml eval init`.

    Example: pml eval --tools tools.jsonl --queries queries.jsonl
    """
    if context.invoked_subcommand:
        return
    for option, given in (("--distractors", distractors), ("--requests", requests), ("--model", model)):
        if tools is None and given is not None:
            raise typer.BadParameter("needs --tools", param_hint=option)
    if tools is not None and queries is None:
        raise typer.BadParameter("needs --queries", param_hint="--tools")
    if requests_share is not None and requests is None:
        raise typer.BadParameter("needs --requests", param_hint="--requests-share")
    share = 1.0 if requests_share is None else requests_share
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{share:g} is not from 0 to 1", param_hint="--requests-share")
    command = Command(config, as_json=as_json)
    try:
        if tools is not None and queries is not None:
            labelled = _read_queries(queries)
            known = partial(_requests, requests, share, requests_seed)
            subject = _of_files(tools, distractors, known, model or "builtin", ranking or Ranking.FUSED)
            outcomes, used = _measured(subject, labelled)
        else:
            labelled = _read_queries(queries or _query_file(), hint="pml eval init writes a first one from your tools")
            subject, outcomes, used = command.run(lambda: _on_own_catalog(command, labelled, ranking))
    except GatewayError as error:
        fail(error, as_json=as_json)
    _print(subject, outcomes, used, own=tools is None, of_requests=requests is not None, as_json=as_json)


@eval_app.command("init")
def init(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help=f"Default {QUERY_FILE} in PML_HOME.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a first query for each of your tools; put them in your own words, then run `pml eval`.

    The queries are the tools' own descriptions, which search finds easily: as they are, they only tell which tools
    are mistaken for each other. What people would type says how well search works.

    Example: pml eval init --output queries.jsonl
    """
    command = Command(config, as_json=as_json)
    target = output or _query_file()
    try:
        if target.exists() and not force:
            raise InvalidInputError(f"{target} exists", hint="--force overwrites it")
        rows = command.run(lambda: _starter_rows(command))
        _write(target, rows)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({"file": str(target), "queries": len(rows)})
        return
    say(f"{len(rows)} queries: {target}")
    note(
        "they are the tools' own words, which search finds easily: as they are, pml eval only tells which tools are\n"
        "mistaken for each other. Put each query in the words you would use, remove the rest, then run: pml eval"
    )


async def _starter_rows(command: Command) -> list[JsonObject]:
    """One query for all tools that say the same: whichever of them is found is right."""
    from pml_gateway.index.evaluation import own_words
    from pml_gateway.policy.client import LOCAL

    async with command_gateway(command) as gateway:
        alike: dict[str, list[str]] = {}
        for tool in (await gateway.wait_for_tools()).view(LOCAL).searchable:
            text = own_words(tool.name, tool.description or tool.title)
            alike.setdefault(text, []).append(tool.qualified_name)
    if not alike:
        raise GatewayError(
            "there is no tool to write a query for", hint="pml upstreams --probe says why servers list none"
        )
    return [
        {"query": text, "gold": keys[:1], **({"gold_groups": [keys]} if len(keys) > 1 else {})}
        for text, keys in alike.items()
    ]


def _write(target: Path, rows: Sequence[JsonObject]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: what it replaces may be a day's work.
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else usual_mode()
        write_atomically(target, text.encode("utf-8", "backslashreplace"), mode)
    except OSError as error:
        raise InvalidInputError(
            f"{target} cannot be written: {error}", hint="name another file with --output"
        ) from None


async def _on_own_catalog(
    command: Command, labelled: Sequence[LabelledQuery], ranking: Ranking | None
) -> tuple[MeasuredIndex, list[QueryOutcome], Ranking]:
    from pml_gateway.reports.search_quality import of_state

    async with command_gateway(command) as gateway:
        subject = of_state(await gateway.wait_for_search(INDEX_SECONDS), ranking)
        return subject, *_measured(subject, labelled)


def _of_files(
    tools: Path,
    distractors: Path | None,
    requests_of: Callable[[Collection[str]], Mapping[str, tuple[str, ...]]],
    model: str,
    ranking: Ranking,
) -> MeasuredIndex:
    """Return the tools of both files with their requests; of two with one id the first counts."""
    from pml_gateway.index import ToolDocument, ToolIndex, load_embedder
    from pml_gateway.index.evaluation import tool_documents
    from pml_gateway.reports.search_quality import of_index

    rows: dict[str, JsonObject] = {}
    documents: dict[str, ToolDocument] = {}
    for file in (tools, distractors):
        if file is None:
            continue
        read = _rows(file, "tools")
        again = len(read) - len({row.get("id") for row in read if isinstance(row.get("id"), str)})
        for row, document in zip(read, tool_documents(read, str(file)), strict=True):
            if document.key not in documents:
                rows[document.key], documents[document.key] = row, document
        if again:
            have = plural_of(
                again, "tool of {} has the id of another one and is", "tools of {} have the id of another one and are"
            )
            warn(f"{again} {have.format(file)} left out")
    for key, texts in requests_of(documents).items():
        documents[key] = replace(documents[key], requests=texts)
    embedder = None if ranking is Ranking.LEXICAL else load_embedder(model)
    index = ToolIndex.build(list(documents.values()), embedder)
    return of_index(index, rows, embedder.model_id if embedder else "", ranking)


def _requests(file: Path | None, share: float, seed: int, tools: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    from pml_gateway.index.evaluation import REQUEST_LAYOUT, drawn, tool_requests

    if file is None:
        return {}
    return drawn(tool_requests(_rows(file, "requests", REQUEST_LAYOUT), str(file), tools), share, seed)


def _measured(subject: MeasuredIndex, labelled: Sequence[LabelledQuery]) -> tuple[list[QueryOutcome], Ranking]:
    from pml_gateway.reports.search_quality import measure

    known = {document.key for document in subject.documents}
    impossible = [query for query in labelled if any(group.isdisjoint(known) for group in query.groups)]
    if impossible:
        example = next(min(group) for group in impossible[0].groups if group.isdisjoint(known))
        warn(f"{len(impossible)} queries need a tool that is not there, for example {example!r}: these count as missed")
    return measure(subject, labelled)


def _print(
    subject: MeasuredIndex,
    outcomes: Sequence[QueryOutcome],
    ranking: Ranking,
    *,
    own: bool,
    of_requests: bool,
    as_json: bool,
) -> None:
    from pml_gateway.index.evaluation import descriptions, figures, hard_tools, missed_none

    known = sum(bool(document.requests) for document in subject.documents)
    report: JsonObject = {
        **figures(outcomes, min_score=subject.min_score),
        **({"with_requests": known} if known or of_requests else {}),
        "model": "none" if ranking is Ranking.LEXICAL else subject.model,
        "ranking": ranking.value,
    }
    hard = hard_tools(subject.documents, outcomes) if own else []
    if as_json:
        print_json(report | ({"hard_tools": [_hard_row(tool) for tool in hard]} if own else {}))
        return
    found = sum(missed_none(outcome) for outcome in outcomes)
    say(f"{found} of {counted(len(outcomes), 'query', 'queries')} find their tools among the first five hits")
    say()
    print_table(("figure", "value", "what it says"), ((key, *_in_words(key, value)) for key, value in report.items()))
    easy = descriptions(subject.documents, outcomes)
    if easy:
        note(
            f"{counted(easy, 'query is', 'queries are')} still the tool's own description, which search finds easily;\n"
            "put it in the words you would use, and the figures tell how well search works for you"
        )
    if hard:
        say()
        rows = ((tool.key, f"{tool.missed} of {tool.asked}", "; ".join(tool.reasons)) for tool in hard)
        print_table(("hard to find", "missed", "why"), rows)


def _in_words(key: str, value: object) -> tuple[str, str]:
    """Return a figure as people read it, and what it says."""
    name, _, at = key.partition("@")
    if name.endswith("_ms"):
        shown = f"{value:.1f} ms"
    elif isinstance(value, float) and name not in COUNTED:
        shown = f"{value:.1%}"
    else:
        shown = f"{value:,.0f}" if isinstance(value, int | float) else str(value)
    return shown, MEANINGS.get(key, MEANINGS[name]).format(at)


def _hard_row(tool: HardTool) -> JsonObject:
    return {"name": tool.key, "missed": tool.missed, "asked": tool.asked, "reasons": list(tool.reasons)}


def _read_queries(file: Path, hint: str = "one JSON object on each line") -> list[LabelledQuery]:
    from pml_gateway.index.evaluation import labelled_queries

    return list(labelled_queries(_rows(file, "queries", hint), str(file)))


def _rows(file: Path, content: str, hint: str = "one JSON object on each line") -> list[JsonObject]:
    from pml_gateway.index.evaluation import read_rows

    try:
        with file.open(encoding="utf-8") as lines:
            rows = read_rows(lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read: {error}", hint=hint) from None
    if not rows:
        raise InvalidInputError(f"{file} holds no {content}", hint=hint)
    return rows


def _query_file() -> Path:
    return Paths.from_environ().home / QUERY_FILE
