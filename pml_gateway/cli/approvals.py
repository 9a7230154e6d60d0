"""`pml approvals`: calls that wait for you because a rule asks before them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from pml_gateway.cli.context import Command, JsonOption
from pml_gateway.cli.output import note, print_json, print_json_line, print_table, printable, say, warn
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.text import escaped

approvals_app = typer.Typer(
    name="approvals",
    help="Approve or deny the calls that a rule asks about.\n\nExample: pml approvals list",
    no_args_is_help=True,
)

WATCH_SECONDS = 1.0

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="As `pml approvals list` shows it.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="As `pml approvals list` shows them.")]


class ApprovedCalls(StrEnum):
    """Calls that an approval is for."""

    CALL = "call"
    ARGUMENTS = "arguments"
    TOOL = "tool"


@approvals_app.command("list")
def list_approvals(as_json: JsonOption = False) -> None:
    """List the calls that wait for you, and those that you answered lately.

    Example: pml approvals list
    """
    command = Command(as_json=as_json)
    rows = command.run(lambda: asked(command))
    if as_json:
        print_json(rows)
    elif rows:
        _print_rows(rows)
    else:
        note("nothing waits for your approval")


@approvals_app.command("show")
def show(id_: IdArgument, as_json: JsonOption = False) -> None:
    """Show what waits with all arguments, and what differs from the last call of each tool that you approved.

    Example: pml approvals show 1f2e3d4c
    """
    command = Command(as_json=as_json)
    whole = command.run(lambda: found(command, id_))
    print_json(whole) if as_json else _print_whole(whole)


@approvals_app.command("approve")
def approve(
    ids: IdsArgument,
    scope: Annotated[
        ApprovedCalls,
        typer.Option("--for", help="call: once; arguments: the same call again and again; tool: any call of the tool."),
    ] = ApprovedCalls.CALL,
    as_json: JsonOption = False,
) -> None:
    """Approve calls, which are then made if their client still waits or sends them again.

    Example: pml approvals approve 1f2e3d4c --for arguments
    """
    _answer(ids, "approve", scope, Command(as_json=as_json))


@approvals_app.command("deny")
def deny(ids: IdsArgument, as_json: JsonOption = False) -> None:
    """Deny calls, or take back an approval.

    Example: pml approvals deny 1f2e3d4c
    """
    _answer(ids, "deny", ApprovedCalls.CALL, Command(as_json=as_json))


@approvals_app.command("watch")
def watch(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, metavar="N", help="End after so many seconds.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show each call that waits as soon as it does, until interrupted.

    Example: pml approvals watch
    """
    command = Command(as_json=as_json)

    async def follow() -> None:
        import anyio

        end = None if seconds is None else time.monotonic() + seconds
        known: set[str] = set()
        told = ""
        while True:
            rows, problem = list[dict[str, Any]](), ""
            try:
                rows = await asked(command)
            except GatewayError as error:
                problem = str(error)
            if problem and problem != told:
                warn(problem)
            told = problem
            for row in rows:
                if row["state"] == "pending" and row["id"] not in known:
                    known.add(row["id"])
                    # It may be over by now, and the next one is still shown.
                    with suppress(UsageError):
                        whole = await found(command, row["id"])
                        print_json_line(whole) if as_json else _print_whole(whole)
            if end is not None and time.monotonic() >= end:
                return
            await anyio.sleep(WATCH_SECONDS)

    command.run(follow)


@approvals_app.command("secret")
def secret(as_json: JsonOption = False) -> None:
    """Print a setting that has each approval take a passphrase; only its hash is in it.

    Example: pml approvals secret
    """
    from pml_gateway.gateway.approvals import hashed_passphrase

    passphrase = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if len(passphrase) < MIN_PASSPHRASE:
        raise UsageError(f"a passphrase of {len(passphrase)} characters; at least {MIN_PASSPHRASE} are needed")
    hashed = hashed_passphrase(passphrase)
    if as_json:
        print_json({"approvals": {"secret": hashed}})
        return
    say(f"approvals:\n  secret: {hashed}")
    note("write this into your configuration; pml approvals approve then asks for the passphrase")


MIN_PASSPHRASE = 12
"""Minimum characters: an agent that reads the hash can try many."""


def _answer(ids: list[str], answer: Literal["approve", "deny"], scope: ApprovedCalls, command: Command) -> None:
    from pml_gateway.owner.approvals import answered_approval, goes_on

    passphrase, asked_before = "", {}
    if answer == "approve":
        asked_before = {id_: command.run(lambda id_=id_: found(command, id_)) for id_ in ids}  # type: ignore[misc]
        if any(row["needs_passphrase"] for row in asked_before.values()):
            passphrase = typer.prompt("Passphrase of approvals.secret", hide_input=True, err=True)

    async def tell() -> list[dict[str, Any]]:
        return [await answered_approval(command.paths, id_, answer, scope.value, passphrase) for id_ in ids]

    answered = command.run(tell)
    if command.as_json:
        print_json(answered)
        return
    for row in answered:
        tools = ", ".join(dict.fromkeys(call["tool"] for call in row["calls"]))
        then = goes_on(asked_before[row["id"]], answer) if answer == "approve" else ""
        say(f"{row['state']}: {row['id']} ({escaped(tools)}).{then}")


async def asked(command: Command) -> list[dict[str, Any]]:
    """Return the calls that wait in any process, and those that were answered lately; print errors of others.

    Raises:
        GatewayError: no process knows them now.
    """
    from pml_gateway.owner.approvals import asked_approvals

    rows, errors = await asked_approvals(command.paths)
    for error in errors:
        warn(error)
    return rows


async def found(command: Command, id_: str) -> dict[str, Any]:
    """Return one of them with its arguments.

    Raises:
        UsageError: no process has it.
    """
    from pml_gateway.owner.approvals import found_approval

    return await found_approval(command.paths, id_)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("ID", "STATE", "CLIENT", "CALLS", "ENDS IN"),
        [
            (
                row["id"],
                row["state"] if row["scope"] is None else f"{row['state']} for {row['scope']}, used {row['uses']}",
                escaped(row["client"]),
                escaped(", ".join(call["tool"] for call in row["calls"])),
                f"{row['seconds_left'] // 60} min",
            )
            for row in rows
        ],
    )


def _print_whole(found: dict[str, Any]) -> None:
    part = f", part of {found['part_of']}" if found["part_of"] else ""
    say(f"{found['id']}: {found['state']}, asked by {escaped(found['client'])}{part}", style="bold")
    for call in found["calls"]:
        say(f"{escaped(call['tool'])} ({escaped(call['rule'])})")
        say(printable(json.dumps(call["arguments"], indent=2, ensure_ascii=False)))
        for where, before, after in call.get("differs", ()):
            say(printable(f"~ {where}: {json.dumps(before)} before, {json.dumps(after)} now"), style="yellow")
    if found["state"] == "pending":
        note(f"pml approvals approve {found['id']}, or pml approvals deny {found['id']}")
