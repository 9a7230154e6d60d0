"""Plans and standings of a migration become text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pml_gateway.cli.output import note, print_diff, print_table, say, warn
from pml_gateway.counting import counted, plural_of

if TYPE_CHECKING:
    from pml_gateway.types import JsonObject

SHOWN = 12
MAX_QUERY = 32


def say_plan(report: JsonObject) -> None:
    """What a step would change."""
    calls = counted(report["calls"], "recorded call")
    say(f"{report['stage'] or 'now'} -> {report['target']}, {calls} replayed", style="bold")
    gone = report["calls_of_gone_tools"]
    if gone:
        are = plural_of(
            gone, "is of a tool or client that is gone, and is", "are of tools or clients that are gone, and are"
        )
        say(f"  {gone:,} more {are} left out")
    say(f"  {report['listed_calls']:,} {plural_of(report['listed_calls'], 'finds its', 'find their')} tool listed")
    hits = f"among the first {report['first_hits']} hits of a search"
    say(f"  {report['found_calls']:,} {plural_of(report['found_calls'], 'finds', 'find')} it {hits}")
    say(f"  {report['lost_calls']:,} would be neither listed nor found")
    saved = report["tokens_now"] - report["tokens_then"]
    share = f" ({saved / report['tokens_now']:.0%})" if report["tokens_now"] else ""
    say(
        f"  a list costs {counted(report['tokens_then'], 'token')} instead of {report['tokens_now']:,}: "
        f"{saved:,} saved{share}"
    )
    changes = report["changes"]
    if changes:
        say()
        rows = _by_tool(changes)
        print_table(
            ("not listed then", "calls", "place", "found by", "words from"),
            (
                (row["name"], row["calls"], row["rank"] or "none", _shortened(row["query"]), row["words_from"])
                for row in rows[:SHOWN]
            ),
        )
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN} more (--json names all)", style="dim")
    whitelist = report["whitelist"]
    if whitelist["tools"]:
        say()
        names = whitelist["tools"]
        say(
            f"whitelist of {counted(len(names), 'tool')}, {whitelist['tokens']:,} "
            f"of {whitelist['full_tokens']:,} tokens, keeps {whitelist['share']:.1%} of the calls listed"
        )
        say(f"  {', '.join(names[:SHOWN])}{f', and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}")
        say("  (the cheapest one; hybrid stages list it, --apply-whitelist writes it)", style="dim")


def say_standing(report: JsonObject) -> None:
    """How a stage goes, and when to move on."""
    whose = f" of {report['client']}" if report["client"] else ""
    say(f"stage{whose}: {report['stage'] or 'none: ' + report['mode'] + ' with values of its own'}", style="bold")
    calls = counted(report["calls"], "call")
    say(f"  {calls} in {report['days']:.1f} days, {report['through_search']:,} of them by a search")
    searches = counted(report["searches"], "search", "searches")
    say(f"  {searches}, {report['missed']:,} missed ({report['miss_rate']:.0%})")
    say(f"  success {_share(report['success'])}, before this stage {_share(report['success_before'])}")
    for name in report["clients_with_own_mode"]:
        say(f"  {name} has a mode of its own: pml migrate status --client {name}")
    if report["stage"] is None:
        say("  choose a stage: pml migrate --to hybrid_balanced")
    elif report["next"] is None:
        say("  this is the last stage")
    elif report["reasons_to_wait"]:
        say(f"  wait before {report['next']}: {'; '.join(report['reasons_to_wait'])}")
    else:
        say(f"  move on to {report['next']}: it has enough calls, and they go well. See pml migrate plan")


def say_moved(report: JsonObject) -> None:
    """What a step changed."""
    print_diff(report["diff"])
    planned = report["plan"]
    if not planned["calls"]:
        note("no calls are recorded, so nothing spoke against it; `pml migrate status` will say how it goes")
    verb = f"moved from {report['from']} to" if report["moved"] else "nothing was written; this would move to"
    saved = planned["tokens_now"] - planned["tokens_then"]
    change = f"{saved:,} fewer" if saved >= 0 else f"{-saved:,} more"
    note(f"{verb} {report['stage']}: a list has {counted(planned['tokens_then'], 'token')}, {change}")
    if report["moved"]:
        say_reloaded(report["gateways"])
        note("`pml migrate back` undoes this")


def say_reloaded(gateways: list[JsonObject]) -> None:
    """Which running gateways serve by it."""
    served = [str(each["pid"]) for each in gateways if "pid" in each]
    if served:
        note(f"running gateways serve it now: {', '.join(served)}")
    for each in gateways:
        if "error" in each:
            warn(each["error"])


def _by_tool(changes: list[JsonObject]) -> list[JsonObject]:
    """One row per tool: all its calls, and the words that find it worst; lost ones first."""
    found: dict[str, JsonObject] = {}
    for row in sorted(changes, key=lambda row: (row["rank"] is not None, -(row["rank"] or 0))):
        known = found.setdefault(row["name"], {**row, "calls": 0})
        known["calls"] += row["calls"]
    return sorted(found.values(), key=lambda row: (row["rank"] is not None, -row["calls"]))


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_QUERY else f"{text[: MAX_QUERY - 1]}…"
