"""`pml tools`: the catalog, what one client gets of it, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import typer

from pml_gateway.cli.completion import client_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, ModeOption, PresetOption, command_gateway
from pml_gateway.cli.output import print_json, print_lines, print_table, say
from pml_gateway.config.problems import client_entry
from pml_gateway.text import counted
from pml_gateway.types import MODES, ExposureMode

if TYPE_CHECKING:
    from pml_gateway.catalog.model import CatalogTool
    from pml_gateway.gateway.state import GatewayState
    from pml_gateway.policy.client import Client
    from pml_gateway.reports.verdicts import Exclusion, Verdict
    from pml_gateway.types import JsonObject


def tools(
    query: Annotated[str | None, typer.Option("--query", help="Intent that selects tools.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Every tool, with why it is listed or not.")] = False,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="As this configured client.", autocompletion=client_names),
    ] = None,
    config: ConfigOption = None,
    mode: ModeOption = None,
    preset: PresetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the whole catalog, or with --mode, --preset or --client exactly what a client would get.

    Example: pml tools --mode hybrid --query "work with pull requests" --explain
    """
    command = Command(config, mode, preset, as_json)
    if explain:
        _print_explained(command.run(lambda: _explained(command, query, client)), as_json=as_json)
        return
    as_client = mode is not None or preset is not None or client is not None
    rows, unlisted = command.run(lambda: _listed(command, query, client, as_client=as_client))
    if as_json:
        print_json({"tools": rows, "unlisted": unlisted})
        return
    columns = ["tool", "server", "why" if as_client else "state", "what it does"]
    cells = [
        [row["name"], row["server"] or "(gateway)", row["reason"] or row["state"], row["description"]] for row in rows
    ]
    if not as_client and all(row["state"] == "ok" for row in rows):
        # As it should be, which nobody has to be told of every tool.
        columns, cells = [*columns[:2], columns[3]], [[*row[:2], row[3]] for row in cells]
    print_lines(columns, cells, shorten="what it does")
    say(counted(len(rows), "tool"), style="dim")


async def _listed(
    command: Command, query: str | None, client_name: str | None, *, as_client: bool
) -> tuple[list[JsonObject], list[str]]:
    """The tools as rows, and the servers whose tools are not known."""
    from pml_gateway.gateway.tool_list import legacy_definition, own_definitions

    async with command_gateway(command, lists_by_intent=as_client and not query, of_all=True) as gateway:
        state = await gateway.ready()
        client = _client(state, client_name)
        intent = query or _intent(state, client)
        mode = _mode(command, state, client) if as_client else ExposureMode.FULL_PROXY
        if intent is not None and MODES[mode].reads_intent:
            state = await gateway.searchable(30)
        view = state.view(client)
        namespaces = state.namespaces(view)
        exposure = await anyio.to_thread.run_sync(state.expose, view, mode, intent)
        meta = own_definitions(state, view, exposure) if as_client else []
        rows = [
            _row(each["name"], "namespace" if each["name"] in namespaces else "meta-tool", each["description"])
            for each in meta
        ]
        rows += [
            _row(
                listed.tool.qualified_name,
                listed.reason.value if as_client else None,
                listed.tool.description,
                listed.tool,
                listed.score,
            )
            for listed in exposure.tools
        ]
        rows += [
            _row(tool.qualified_name, "legacy", legacy_definition(state, view, tool)["description"], tool)
            for tool in exposure.legacy
        ]
        return rows, list(gateway.unlisted())


def _row(
    name: str, reason: str | None, description: str, tool: CatalogTool | None = None, score: float | None = None
) -> JsonObject:
    from pml_gateway.text import first_sentence

    return {
        "name": name,
        "server": tool.upstream_id if tool is not None else None,
        "reason": reason,
        "score": score,
        "state": "" if tool is None else "stale" if tool.stale else "ok",
        "description": first_sentence(description, 70),
    }


async def _explained(command: Command, query: str | None, client_name: str | None) -> JsonObject:
    from pml_gateway.reports.verdicts import exclusions, verdicts

    async with command_gateway(command, lists_by_intent=not query) as gateway:
        state = await gateway.searchable(60)
        client = _client(state, client_name)
        view = state.view(client)
        mode, intent = _mode(command, state, client), query or _intent(state, client)
        settings = state.settings.gateway
        judged = await anyio.to_thread.run_sync(
            lambda: verdicts(
                mode,
                view.tools,
                lambda text, limit: state.search(view, text, limit).tools,
                settings,
                intent,
                state.used(view),
                ownership=state.catalog.ownership,
            )
        )
        excluded = exclusions(state.catalog, client, settings.blacklisted_tools)
        return {
            "mode": mode.value,
            "intent": intent,
            "client": client.id.removeprefix("client:"),
            "direct_calls": settings.direct_calls,
            "tools": [
                *(_judged(verdict, settings.direct_calls == "visible") for verdict in _in_order(judged)),
                *(_excluded(each) for each in excluded),
            ],
        }


def _in_order(judged: tuple[Verdict, ...]) -> list[Verdict]:
    """Listed tools first, then the others, each best first."""
    return sorted(judged, key=lambda each: (not each.listed, each.place or len(judged), each.tool.qualified_name))


def _judged(verdict: Verdict, direct_calls: bool) -> JsonObject:
    return {
        "name": verdict.tool.qualified_name,
        "server": verdict.tool.upstream_id,
        "listed": verdict.listed,
        "callable": verdict.listed or direct_calls,
        "reason": verdict.reason,
        "score": verdict.score,
        "place": verdict.place,
        "limit": verdict.limit,
        "pattern": None,
    }


def _excluded(exclusion: Exclusion) -> JsonObject:
    return {
        "name": exclusion.tool.qualified_name,
        "server": exclusion.tool.upstream_id,
        "listed": False,
        "callable": False,
        "reason": exclusion.rule.value,
        "score": None,
        "place": None,
        "limit": None,
        "pattern": exclusion.pattern,
    }


def _print_explained(answer: JsonObject, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    rows = answer["tools"]
    print_table(
        ("tool", "in", "score", "why"),
        ((row["name"], "yes" if row["listed"] else "no", _score(row), _why(row)) for row in rows),
    )
    listed, by_name = (sum(row[key] for row in rows) for key in ("listed", "callable"))
    intent = f"intent {answer['intent']!r}" if answer["intent"] else "no intent"
    say(f"{answer['mode']}, {intent}: {listed} of {len(rows)} listed, {by_name} callable by name", style="dim")


def _score(row: JsonObject) -> str:
    return "" if row["score"] is None else f"{row['score']:.2f}"


def _why(row: JsonObject) -> str:
    decided = f" ({row['limit']:g})" if row["limit"] is not None else ""
    matched = f" by {row['pattern']!r}" if row["pattern"] else ""
    place = f", place {row['place']}" if row["place"] is not None and not row["listed"] else ""
    return f"{row['reason']}{decided}{matched}{place}"


def _client(state: GatewayState, name: str | None) -> Client:
    """The client of this name in the configuration, without its key; whoever runs the command if none is named.

    Raises:
        UsageError: no such client.
    """
    from pml_gateway.policy.client import LOCAL, configured_client

    if name is None:
        return LOCAL
    return configured_client(name, client_entry(state.settings, name))


def _mode(command: Command, state: GatewayState, client: Client) -> ExposureMode:
    """The mode asked for, else the client's own, else the gateway's."""
    asked = command.mode is not None or command.preset is not None
    return state.settings.gateway.tools_exposure if asked or client.mode is None else client.mode


def _intent(state: GatewayState, client: Client) -> str | None:
    return client.intent or state.settings.gateway.intent
