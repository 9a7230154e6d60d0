"""`pml eval`: how well search finds tools, of labelled files or of the user's own catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import note, print_json, print_table, say, warn
from pml_gateway.errors import InvalidInputError
from pml_gateway.owner.operations import EVALUATE, STARTER_QUERIES
from pml_gateway.paths import Paths
from pml_gateway.text import counted, plural_of
from pml_gateway.types import Ranking

if TYPE_CHECKING:
    from pml_gateway.reports.search_quality import SearchQuality

MEANINGS = {
    "n": "queries measured",
    "with_examples": "tools of which examples are known",
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

COUNTED = ("n", "with_examples", "list_median", "tokens_5_hits")
"""Figures that are no shares."""

QUERY_FILE = "eval.jsonl"

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
    examples: Annotated[
        Path | None, typer.Option("--examples", metavar="FILE", help="With --tools: what tools are asked (JSONL).")
    ] = None,
    examples_share: Annotated[
        float | None,
        typer.Option("--examples-share", metavar="SHARE", help="Keep the examples of this share of the tools only."),
    ] = None,
    examples_seed: Annotated[int, typer.Option("--examples-seed", help="Which tools the share is made of.")] = 0,
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
    for option, given in (("--distractors", distractors), ("--examples", examples), ("--model", model)):
        if tools is None and given is not None:
            raise typer.BadParameter("needs --tools", param_hint=option)
    if tools is not None and queries is None:
        raise typer.BadParameter("needs --queries", param_hint="--tools")
    if examples_share is not None and examples is None:
        raise typer.BadParameter("needs --examples", param_hint="--examples-share")
    share = 1.0 if examples_share is None else examples_share
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{share:g} is not from 0 to 1", param_hint="--examples-share")
    command = Command(config, as_json=as_json)
    from pml_gateway.reports.query_files import FileTools, read_queries
    from pml_gateway.reports.search_quality import evaluate as evaluated

    if tools is not None and queries is not None:
        labelled = read_queries(queries)
        read = FileTools(tools, *([distractors] if distractors is not None else ()))
        if examples is not None:
            read.take_examples(examples, share, examples_seed)
        for file, again in read.repeated.items():
            have = plural_of(
                again, "tool of {} has the id of another one and is", "tools of {} have the id of another one and are"
            )
            warn(f"{again} {have.format(file)} left out")
        found = evaluated(
            read.index(model or "builtin", ranking or Ranking.FUSED), labelled, of_examples=bool(examples)
        )
    else:
        labelled = read_queries(queries or _query_file(), hint="pml eval init writes a first one from your tools")
        rows = [{"query": each.text, "gold_groups": [*map(sorted, each.groups)]} for each in labelled]
        found = command.ask(EVALUATE, {"queries": rows, "ranking": ranking})
    if impossible := found["impossible"]:
        many, example = len(impossible), impossible[0]
        warn(f"{many} queries need a tool that is not there, for example {example!r}: these count as missed")
    _print(found, own=tools is None, as_json=as_json)


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
    from pml_gateway.reports.query_files import write_rows

    command = Command(config, as_json=as_json)
    target = output or _query_file()
    if target.exists() and not force:
        raise InvalidInputError(f"{target} exists", hint="--force overwrites it")
    rows = command.ask(STARTER_QUERIES)["queries"]
    write_rows(target, rows)
    if as_json:
        print_json({"file": str(target), "queries": len(rows)})
        return
    say(f"{len(rows)} queries: {target}")
    note(
        "they are the tools' own words, which search finds easily: as they are, pml eval only tells which tools are\n"
        "mistaken for each other. Put each query in the words you would use, remove the rest, then run: pml eval"
    )


def _print(found: SearchQuality, *, own: bool, as_json: bool) -> None:
    hard = found["hard_tools"] if own else []
    if as_json:
        print_json(found["figures"] | ({"hard_tools": hard} if own else {}))
        return
    queries = counted(found["queries"], "query", "queries")
    say(f"{found['found']} of {queries} find their tools among the first five hits")
    say()
    figures = ((key, *_in_words(key, value)) for key, value in found["figures"].items())
    print_table(("figure", "value", "what it says"), figures)
    if found["easy"]:
        note(
            f"{counted(found['easy'], 'query is', 'queries are')} still the tool's own description, which search finds "
            "easily;\nput it in the words you would use, and the figures tell how well search works for you"
        )
    if hard:
        say()
        rows = ((each["name"], f"{each['missed']} of {each['asked']}", "; ".join(each["reasons"])) for each in hard)
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


def _query_file() -> Path:
    return Paths.from_environ().home / QUERY_FILE
