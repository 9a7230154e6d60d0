"""`pml stats`: what was called, how it went, and what the lists saved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import note, print_json, print_table, say
from pml_gateway.owner.operations import STATS
from pml_gateway.text import counted, escaped, shortened

if TYPE_CHECKING:
    from pml_gateway.activity.statistics import Figures

_SPAN = re.compile(r"(\d{1,4})\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
SHOWN_TOOLS = 10
MAX_PROGRAM = 30


def seconds_of(span: str, option: str = "--since") -> float:
    """Return the seconds of a span as `15m`, `12h`, `7d` or `2w`.

    Raises:
        BadParameter: it is written otherwise.
    """
    match = _SPAN.fullmatch(span.strip().lower())
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(f"{span!r} is no span of time; write for example 12h, 7d or 2w", param_hint=option)
    return float(int(match[1]) * _SECONDS[match[2]])


def stats(
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back: 12h, 7d, 2w.")] = "30d",
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="Of one client alone.")] = None,
    program: Annotated[
        str | None, typer.Option("--program", metavar="NAME", help="Of one program, by the name it gives itself.")
    ] = None,
    upstream: Annotated[str | None, typer.Option("--upstream", metavar="NAME", help="Of one server alone.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the recorded usage: calls per day, saved tokens, most used and never used tools, success and latency.

    Example: pml stats --since 7d --upstream github
    """
    span = seconds_of(since)
    command = Command(config, as_json=as_json)
    report = command.ask(STATS, {"seconds": span, "client": client, "upstream": upstream, "program": program})
    if as_json:
        print_json({"since": since, "client": client, "program": program, "upstream": upstream, **report})
        return
    _show(report, since)


def _show(report: Figures, since: str) -> None:
    from pml_gateway.activity.statistics import sparkline

    if not report["calls"] and report["lists"] == 0:
        note(f"nothing was recorded in {since}; `pml serve` records calls unless activity.record is false")
        return
    counts = [day["calls"] for day in report["days"]]
    say(f"calls     {report['calls']:,} in {since}, |{sparkline(counts)}| per day, at most {max(counts):,}")
    if (latency := report["latency_seconds"]) is not None:
        errors = ", ".join(f"{code} {count}" for code, count in list(report["errors"].items())[:4])
        say(f"success   {report['success_rate']:.1%}{f'; {errors}' if errors else ''}")
        say(f"latency   p50 {_ms(latency['p50'])}, p95 {_ms(latency['p95'])}")
        say(f"called    {', '.join(f'{how} {count:,}' for how, count in report['how'].items())}")
    programs = [f"{shortened(escaped(name), MAX_PROGRAM)} {n:,}" for name, n in report["programs"].items() if name]
    if programs:
        more = f" and {len(programs) - SHOWN_TOOLS} more" if len(programs) > SHOWN_TOOLS else ""
        say(f"programs  {', '.join(programs[:SHOWN_TOOLS])}{more}")
    from_search = f"{counted(report['calls_led_by_search'], 'call')} came from one"
    if report["searches"] is None:
        say(f"searches  {from_search}")
    else:
        say(
            f"searches  {report['searches']:,}, {report['missed_searches']:,} missed (no hit was called); {from_search}"
        )
        listed, saved = report["listed_tokens"] or 0, report["saved_tokens"] or 0
        share = f" ({saved / (listed + saved):.0%})" if listed + saved else ""
        say(f"lists     {report['lists']:,}: {counted(listed, 'token')}, {saved:,} saved{share}")
    if report["tools"]:
        say()
        print_table(
            ("most used", "calls", "success", "p50", "p95"),
            (
                (
                    row["name"] or row["tool"],
                    row["calls"],
                    f"{row['success_rate']:.0%}",
                    _ms(row["p50"]),
                    _ms(row["p95"]),
                )
                for row in report["tools"][:SHOWN_TOOLS]
            ),
        )
    unused = report["never_used"]
    if unused:
        more = f", and {len(unused) - SHOWN_TOOLS} more (--json names all)" if len(unused) > SHOWN_TOOLS else ""
        say()
        say(f"never used: {counted(len(unused), 'tool')}: {', '.join(unused[:SHOWN_TOOLS])}{more}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
