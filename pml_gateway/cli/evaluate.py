"""`pml eval`: how well search finds tools, of labelled files or of the user's own catalog."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import fail, note, print_json, print_table, say
from pml_gateway.config.paths import Paths
from pml_gateway.config.settings import SearchSettings
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.exposure.signature import first_sentence, signature
from pml_gateway.exposure.tokens import count_tokens
from pml_gateway.types import JsonObject, Ranking

if TYPE_CHECKING:
    from pml_gateway.index.difficulty import HardTool
    from pml_gateway.index.evaluation import Outcome
    from pml_gateway.index.labelled import LabelledQuery
    from pml_gateway.index.search import Hit, ToolIndex
    from pml_gateway.server.state import GatewayState

ANSWER_HITS = 5
TIMED_HITS = 10
LISTED_HITS = 1_000
"""Deep enough for every tool that reaches the lowest threshold; searched apart, so that it costs no time measured."""

QUERY_FILE = "eval.jsonl"
INDEX_SECONDS = 120

eval_app = typer.Typer(name="eval", help="Measure how well search finds tools.", no_args_is_help=False)

ToolsOption = Annotated[
    Path | None, typer.Option("--tools", metavar="FILE", help="Tools (JSONL) instead of the own catalog.")
]
QueriesOption = Annotated[
    Path | None, typer.Option("--queries", metavar="FILE", help="Queries with their right tools (JSONL).")
]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: an index, the name of its model, and the tokens of one hit by its key."""

    index: ToolIndex
    model: str
    min_score: float
    hit_tokens: Callable[[str], int]


@eval_app.callback(invoke_without_command=True)
def evaluate(
    context: typer.Context,
    tools: ToolsOption = None,
    queries: QueriesOption = None,
    distractors: Annotated[
        Path | None, typer.Option("--distractors", metavar="FILE", help="Tools that no query needs (JSONL).")
    ] = None,
    ranking: Annotated[Ranking, typer.Option("--ranking", help="The evidence that orders hits.")] = Ranking.FUSED,
    model: Annotated[str, typer.Option("--model", help="With --tools: builtin, a directory, or a name.")] = "builtin",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how well search finds tools: labelled files, or the own catalog and the queries of `pml eval init`.

    Example: pml eval --tools tools.jsonl --queries queries.jsonl
    """
    if context.invoked_subcommand:
        return
    if tools is None and distractors is not None:
        raise typer.BadParameter("needs --tools", param_hint="--distractors")
    if tools is not None and queries is None:
        raise typer.BadParameter("needs --queries", param_hint="--tools")
    command = Command(config, as_json=as_json)
    try:
        if tools is not None and queries is not None:
            labelled = _read_queries(queries)
            subject = _of_files([tools, *([distractors] if distractors else [])], model, ranking)
            outcomes = _outcomes(subject, labelled, ranking)
        else:
            labelled = _read_queries(queries or _query_file(), hint="pml eval init writes a first one from your tools")
            subject, outcomes = command.run(lambda: _on_own_catalog(command, labelled, ranking))
    except GatewayError as error:
        fail(error, as_json=as_json)
    _print(subject, outcomes, ranking, own=tools is None, as_json=as_json)


@eval_app.command("init")
def init(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help=f"Default {QUERY_FILE} in PML_HOME.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a first query for each of your tools; put them in your own words, then run `pml eval`."""
    command = Command(config, as_json=as_json)
    target = output or _query_file()
    if target.exists() and not force:
        fail(InvalidInputError(f"{target} exists", hint="--force overwrites it"), as_json=as_json)
    rows = command.run(lambda: _starter_rows(command))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    if as_json:
        print_json({"file": str(target), "queries": len(rows)})
        return
    say(f"{len(rows)} queries: {target}")
    note("put each query in the words you would use, remove the rest, then run: pml eval")


async def _starter_rows(command: Command) -> list[JsonObject]:
    """One query for all tools that say the same: whichever of them is found is right."""
    from pml_gateway.index.text import split_words

    async with command_gateway(command) as gateway:
        alike: dict[str, list[str]] = {}
        for tool in (await gateway.ready()).catalog.tools:
            text = first_sentence(tool.description or tool.title).rstrip(".") or split_words(tool.name)
            alike.setdefault(text, []).append(tool.qualified_name)
        return [
            {"query": text, "gold": keys[:1], **({"gold_groups": [keys]} if len(keys) > 1 else {})}
            for text, keys in alike.items()
        ]


async def _on_own_catalog(
    command: Command, labelled: Sequence[LabelledQuery], ranking: Ranking
) -> tuple[Subject, list[Outcome]]:
    async with command_gateway(command) as gateway:
        subject = _of_state(await gateway.searchable(INDEX_SECONDS))
        return subject, _outcomes(subject, labelled, ranking)


def _of_state(state: GatewayState) -> Subject:
    if state.index is None:
        raise GatewayError("the tools are not indexed yet", hint="run the command again")
    definitions = {tool.qualified_name: tool for tool in state.catalog.tools}

    def tokens(key: str) -> int:
        tool = definitions[key]
        return _hit_tokens(key, tool.description or tool.title, tool.definition["inputSchema"])

    return Subject(state.index, state.settings.search.model, state.settings.search.min_score, tokens)


def _of_files(files: Sequence[Path], model: str, ranking: Ranking) -> Subject:
    """The tools of all files; of two with one id the first counts."""
    from pml_gateway.index import ToolIndex, load_embedder
    from pml_gateway.index.labelled import input_schema, tool_documents

    rows: dict[str, JsonObject] = {}
    documents = {}
    for file in files:
        read = _rows(file)
        for row, document in zip(read, tool_documents(read, str(file)), strict=True):
            if document.key not in documents:
                rows[document.key], documents[document.key] = row, document
    embedder = None if ranking is Ranking.LEXICAL else load_embedder(model)
    index = ToolIndex.build(list(documents.values()), embedder)

    def tokens(key: str) -> int:
        return _hit_tokens(key, documents[key].description, input_schema(rows[key]))

    return Subject(index, embedder.model_id if embedder else "none", SearchSettings().min_score, tokens)


def _outcomes(subject: Subject, labelled: Sequence[LabelledQuery], ranking: Ranking) -> list[Outcome]:
    from pml_gateway.index.evaluation import Outcome

    outcomes: list[Outcome] = []
    for query in labelled:
        started = time.perf_counter()
        first = subject.index.search(query.text, limit=TIMED_HITS, ranking=ranking).hits
        milliseconds = (time.perf_counter() - started) * 1000
        hits = subject.index.search(query.text, limit=LISTED_HITS, ranking=ranking).hits
        tokens = sum(subject.hit_tokens(hit.key) for hit in first[:ANSWER_HITS])
        outcomes.append(Outcome(query, _scored(first, hits), milliseconds, tokens))
    return outcomes


def _scored(first: Sequence[Hit], hits: Sequence[Hit]) -> tuple[tuple[str, float], ...]:
    """The hits as first answered, then the deeper ones."""
    listed = {hit.key: hit.score for hit in first}
    return tuple((listed | {hit.key: hit.score for hit in hits if hit.key not in listed}).items())


def _print(subject: Subject, outcomes: Sequence[Outcome], ranking: Ranking, *, own: bool, as_json: bool) -> None:
    from pml_gateway.index.difficulty import hard_tools
    from pml_gateway.index.evaluation import figures

    # a figure of a few queries has no more digits than this
    measured = {key: round(value, 4) for key, value in figures(outcomes, min_score=subject.min_score).items()}
    report: JsonObject = {**measured, "model": subject.model, "ranking": ranking.value}
    hard = hard_tools(subject.index.documents, outcomes) if own else []
    if as_json:
        print_json(report | ({"hard_tools": [_hard_row(tool) for tool in hard]} if own else {}))
        return
    print_table(("figure", "value"), report.items())
    if hard:
        say()
        rows = ((tool.key, f"{tool.missed} of {tool.asked}", "; ".join(tool.reasons)) for tool in hard)
        print_table(("hard to find", "missed", "why"), rows)


def _hard_row(tool: HardTool) -> JsonObject:
    return {"name": tool.key, "missed": tool.missed, "asked": tool.asked, "reasons": list(tool.reasons)}


def _hit_tokens(key: str, description: str, schema: JsonObject) -> int:
    hit = {"name": key, "score": 0.999, "signature": signature(key, schema), "description": first_sentence(description)}
    return count_tokens(json.dumps(hit, ensure_ascii=False, separators=(",", ":")))


def _read_queries(file: Path, hint: str = "one JSON object on each line") -> list[LabelledQuery]:
    from pml_gateway.index.labelled import labelled_queries

    return list(labelled_queries(_rows(file, hint), str(file)))


def _rows(file: Path, hint: str = "one JSON object on each line") -> list[JsonObject]:
    from pml_gateway.index.labelled import read_rows

    try:
        with file.open(encoding="utf-8") as lines:
            return read_rows(lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read: {error}", hint=hint) from None


def _query_file() -> Path:
    return Paths.from_environ().home / QUERY_FILE
