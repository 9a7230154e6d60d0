"""`pml tokens`: what lists cost, by mode, server and tool, and when searching would have cost more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway, recorded_searches
from pml_gateway.cli.context_windows import context_window
from pml_gateway.cli.output import answers, note, print_json, print_json_line, print_table, say
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import UsageError
from pml_gateway.signal import Coalesced
from pml_gateway.telemetry import logs
from pml_gateway.text import counted
from pml_gateway.types import MODES, ExposureMode

if TYPE_CHECKING:
    from pml_gateway.reports.chart import Chart
    from pml_gateway.reports.token_costs import TokenReport

SETTLE_SECONDS = 0.3
"""Changes that come within this time are shown as one."""

SUFFIXES = (".svg", ".png")


def tokens(
    query: Annotated[str | None, typer.Option("--query", help="Intent for semantic and hybrid.")] = None,
    window: Annotated[
        int | None,
        typer.Option("--context-window", metavar="N", min=1, help="Tokens the client's model reads. [default: 200000]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The same by the model's name, such as gpt-4.1.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="Also draw the modes into an .svg or .png file.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and count anew when servers or the configuration change.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the tokens of the actual tools/list in every mode, of every server, and of the dearest tools.

    Example: pml tokens --query "review pull requests" --model gpt-4.1 --chart tokens.svg
    """
    size = context_window(model, window)
    if chart is not None and chart.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"{chart.name} ends in neither .svg nor .png", param_hint="--chart")
    command = Command(config, as_json=as_json)

    def show(report: TokenReport) -> None:
        if watch and as_json:
            # One line for each change.
            print_json_line(report.as_json())
        elif as_json:
            print_json(report.as_json())
        else:
            if watch:
                answers().clear()
            _show(report)
        if chart is not None:
            _draw(report, chart)
            note(f"drew {chart}")

    if watch:
        command.run(lambda: _watch(command, query, size, show))
    else:
        command.run(lambda: _once(command, query, size, show))


async def _once(command: Command, query: str | None, window: int, show: Callable[[TokenReport], None]) -> None:
    from pml_gateway.reports.token_costs import token_report

    async with command_gateway(command, of_all=True) as gateway:
        show(await token_report(gateway, query, window, recorded_searches(command)))


async def _watch(command: Command, query: str | None, window: int, show: Callable[[TokenReport], None]) -> None:
    """Show every report that differs from the one before, until interrupted."""
    from pml_gateway.gateway.gateway import open_gateway
    from pml_gateway.meta.meta_tools import ALL_META_TOOLS
    from pml_gateway.reports.token_costs import token_report
    from pml_gateway.serve.reload import follow_files
    from pml_gateway.serve.runtime import watched_files
    from pml_gateway.workplace import Workplace

    logs.configure(LogSettings(level="error"))
    loaded, paths = command.load(), command.paths
    async with (
        open_gateway(loaded.settings, paths, identity=command.identity, meta_tools=ALL_META_TOOLS) as gateway,
        anyio.create_task_group() as tasks,
    ):
        changed = Coalesced(SETTLE_SECONDS)
        gateway.on_swap(lambda _before, _after: changed.ask())
        tasks.start_soon(follow_files, gateway, loaded, command.load, watched_files(paths, Workplace.here()))
        shown = None
        while True:
            report = await token_report(gateway, query, window, recorded_searches(command))
            if report != shown:
                show(report)
                shown = report
            await changed.next()


def _show(report: TokenReport) -> None:
    print_table(
        ("MODE", "TOOLS", "TOKENS", "SAVED", "OF THE CONTEXT"),
        (
            (
                f"{cost.mode.value}{' *' if cost.mode is report.configured else ''}{_sampled(report, cost.mode)}",
                cost.tools,
                f"{cost.tokens:,}",
                f"{report.saved(cost):.0%}",
                _share(report.of_window(cost.tokens)),
            )
            for cost in report.modes
        ),
    )
    say(f"o200k_base tokens of the tools/list JSON; * is configured; of {report.context_window:,} tokens", style="dim")
    told = report.instructions
    say(
        f"instructions at connecting: {told.tokens:,} tokens (gateway.instructions_tokens: {told.budget:,})",
        style="dim",
    )
    if report.sample is not None:
        say(f"~ {report.sample};\nwith no intent at all nothing is selected. --query counts yours", style="dim")
    say()
    total = sum(each.tokens for each in report.servers) or 1
    print_table(
        ("SERVER", "TOOLS", "TOKENS", "OF ALL"),
        ((each.server, each.tools, f"{each.tokens:,}", _share(each.tokens / total)) for each in report.servers),
    )
    say()
    print_table(("DEAREST TOOL", "TOKENS"), ((f"{each.name}", f"{each.tokens:,}") for each in report.dearest))
    say()
    say(_break_even(report))


def _sampled(report: TokenReport, mode: ExposureMode) -> str:
    return " ~" if report.sample is not None and MODES[mode].reads_intent else ""


def _share(part: float) -> str:
    return f"{part:.1%}"


def _break_even(report: TokenReport) -> str:
    found = report.break_even
    full = report.cost(ExposureMode.FULL_PROXY).tokens
    if found.searches is None:
        return "break-even: unknown, since there is no tool to search for"
    if found.searches == 0:
        return f"break-even: the meta-tools alone cost more than these {full:,} tokens; full_proxy is cheaper"
    searches = counted(found.searches, "search", "searches")
    return (
        f"break-even: with {searches} in one conversation, meta_only has cost more\n"
        "tokens than listing everything once (a search, request and answer: "
        f"{found.search_tokens:,},\nthe median of {found.samples})"
    )


def _draw(report: TokenReport, file: Path) -> None:
    from pml_gateway.reports.chart import png, svg

    picture = _chart(report)
    content = png(picture) if file.suffix.lower() == ".png" else svg(picture).encode()
    try:
        file.write_bytes(content)
    except OSError as exc:
        raise UsageError(f"{file} cannot be written: {exc.strerror}", hint="name another file") from exc


def _chart(report: TokenReport) -> Chart:
    from pml_gateway.reports.chart import Bar, Chart

    return Chart(
        "Tokens of tools/list by mode: "
        f"{counted(report.catalog_tools, 'tool')} of {counted(len(report.servers), 'server')}",
        [
            Bar(
                cost.mode.value,
                cost.tokens,
                f"{counted(cost.tokens, 'token')}, {counted(cost.tools, 'tool')}",
                is_marked=cost.mode is report.configured,
            )
            for cost in sorted(report.modes, key=lambda cost: -cost.tokens)
        ],
        f"o200k_base; {report.configured.value} is configured"
        + f"; {counted(report.instructions.tokens, 'token')} of instructions in any mode"
        + (f"; intent: {report.intent[:60]}" if report.intent else ""),
    )
