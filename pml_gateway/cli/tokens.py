"""`pml tokens`: what lists cost, by mode, server and tool, and when searching would have cost more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import answers, fail, note, print_json, print_json_line, print_table, say
from pml_gateway.errors import UsageError
from pml_gateway.owner.operations import TOKENS, WATCH_TOKENS
from pml_gateway.reports.recommend import CONTEXT_WINDOW
from pml_gateway.text import counted
from pml_gateway.types import MODES, ExposureMode

if TYPE_CHECKING:
    from pml_gateway.reports.chart import Chart
    from pml_gateway.reports.token_costs import SampleSize, TokenReport


def tokens(
    query: Annotated[str | None, typer.Option("--query", help="Intent for semantic and hybrid.")] = None,
    window: Annotated[
        int, typer.Option("--context-window", metavar="N", min=1, help="Tokens that the client's model reads.")
    ] = CONTEXT_WINDOW,
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="Also draw the modes into an .svg file.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and count anew when servers or the configuration change.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the tokens of the actual tools/list in every mode, of every server, and of the dearest tools.

    Example: pml tokens --query "review pull requests" --context-window 128000 --chart tokens.svg
    """
    if chart is not None and chart.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{chart.name} does not end in .svg", param_hint="--chart")
    command = Command(config, as_json=as_json)

    def show(report: TokenReport) -> None:
        if watch and as_json:
            # One line for each change.
            print_json_line(report)
        elif as_json:
            print_json(report)
        else:
            if watch:
                answers().clear()
            _show(report)
        if chart is not None:
            _draw(report, chart)
            note(f"drew {chart}")

    asked = {"query": query, "window": window}
    if watch:
        command.ask(WATCH_TOKENS, asked, lambda told: show(told["report"]))
    else:
        show(command.ask(TOKENS, asked))


def _show(report: TokenReport) -> None:
    print_table(
        ("MODE", "TOOLS", "TOKENS", "SAVED", "OF THE CONTEXT"),
        (
            (
                f"{cost['mode']}{' *' if cost['configured'] else ''}{_sampled(report, cost['mode'])}",
                cost["tools"],
                f"{cost['tokens']:,}",
                f"{cost['saved']:.0%}",
                _share(cost["of_context_window"]),
            )
            for cost in report["modes"]
        ),
    )
    window, told = report["context_window"], report["instructions"]
    say(f"o200k_base tokens of the tools/list JSON; * is configured; of {window:,} tokens", style="dim")
    say(
        f"instructions at connecting: {told['tokens']:,} tokens (gateway.instructions_tokens: {told['budget']:,})",
        style="dim",
    )
    if (sample := report["sample"]) is not None:
        say(f"{sample_in_words(sample)};\nwith no intent at all nothing is selected. --query counts yours", style="dim")
    say()
    total = sum(each["tokens"] for each in report["servers"]) or 1
    print_table(
        ("SERVER", "TOOLS", "TOKENS", "OF ALL"),
        (
            (each["server"], each["tools"], f"{each['tokens']:,}", _share(each["tokens"] / total))
            for each in report["servers"]
        ),
    )
    say()
    print_table(("DEAREST TOOL", "TOKENS"), ((each["name"], f"{each['tokens']:,}") for each in report["dearest_tools"]))
    say()
    say(_break_even(report))


def sample_in_words(sample: SampleSize) -> str:
    """Return what a figure with a `~` is."""
    what = "recorded searches" if sample["source"] == "searches" else "tools' own descriptions"
    return f"~ the median of a sample of {sample['intents']} intents ({what})"


def _sampled(report: TokenReport, mode: str) -> str:
    return " ~" if report["sample"] is not None and MODES[ExposureMode(mode)].reads_intent else ""


def _share(part: float) -> str:
    return f"{part:.1%}"


def _break_even(report: TokenReport) -> str:
    found = report["break_even"]
    if found["searches"] is None:
        return "break-even: unknown, since there is no tool to search for"
    if found["searches"] == 0:
        full = next(cost["tokens"] for cost in report["modes"] if cost["mode"] == ExposureMode.FULL_PROXY)
        return f"break-even: the meta-tools alone cost more than these {full:,} tokens; full_proxy is cheaper"
    searches = counted(found["searches"], "search", "searches")
    return (
        f"break-even: with {searches} in one conversation, meta_only has cost more\n"
        "tokens than listing everything once (a search, request and answer: "
        f"{found['search_tokens']:,},\nthe median of {found['samples']})"
    )


def _draw(report: TokenReport, file: Path) -> None:
    from pml_gateway.reports.chart import svg

    try:
        file.write_text(svg(_chart(report)), encoding="utf-8")
    except OSError as exc:
        fail(UsageError(f"{file} cannot be written: {exc.strerror}", hint="name another file"))


def _chart(report: TokenReport) -> Chart:
    from pml_gateway.reports.chart import Bar, Chart

    told = report["instructions"]["tokens"]
    configured = next(cost["mode"] for cost in report["modes"] if cost["configured"])
    return Chart(
        "Tokens of tools/list by mode: "
        f"{counted(report['catalog_tools'], 'tool')} of {counted(len(report['servers']), 'server')}",
        [
            Bar(
                cost["mode"],
                cost["tokens"],
                f"{counted(cost['tokens'], 'token')}, {counted(cost['tools'], 'tool')}",
                is_marked=cost["configured"],
            )
            for cost in sorted(report["modes"], key=lambda cost: -cost["tokens"])
        ],
        f"o200k_base; {configured} is configured"
        + f"; {counted(told, 'token')} of instructions in any mode"
        + (f"; intent: {report['intent'][:60]}" if report["intent"] else ""),
    )
