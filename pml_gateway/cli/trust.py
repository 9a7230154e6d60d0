"""`pml trust`: what is held back for its owner to look at, and what a project's `.pml.yaml` may do."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperGroup

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import (
    INDENT,
    ExitCode,
    answers,
    fail,
    note,
    print_json,
    print_table,
    printable,
    refuse_unasked,
    say,
    warn,
)
from pml_gateway.cli.trust_lint import lint
from pml_gateway.config.document import parse
from pml_gateway.config.layers import dotted, leaves
from pml_gateway.config.load import load_settings
from pml_gateway.config.masked import masked_start
from pml_gateway.config.problems import shaped
from pml_gateway.config.project import find_project_file
from pml_gateway.config.trust import TrustStore, fingerprint, read_project_file
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.text import escaped, nearest, words_of

if TYPE_CHECKING:
    from pml_gateway.trust.pins import PinsFile
    from pml_gateway.trust.review import Case, Change
    from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class Approval:
    """Permissions of a project file once approved; `starts` has the command or URL of each of its servers."""

    file: Path
    content: bytes
    keys: tuple[str, ...]
    starts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The hash that the approval is pinned to."""
        return fingerprint(self.content)


def proposed(file: Path, store: TrustStore, environ: Mapping[str, str] = os.environ) -> Approval:
    """Read what approving `file` as it is now would allow; nothing is approved.

    Raises:
        ConfigurationError: the file is broken or not the user's own, or the configuration would not load with it.
    """
    content = read_project_file(file)
    values = shaped(parse(content, "project", file)).values
    settings = load_settings(
        project_dir=file.parent, environ=environ, trust=store.with_proposal(file, content)
    ).settings
    names = values.get("servers", {})
    return Approval(
        file,
        content,
        tuple(dotted(path) for path, _ in leaves(values)),
        tuple(f"{name}: {masked_start(settings.servers[name])}" for name in names),
    )


SHOWN_OF_DIGEST = 12
"""Characters by which one form of a definition is named."""

WAITING = frozenset({"held", "flagged"})
"""States of definitions that the owner may want to decide about."""

_BECAUSE = {
    "changed": "changed",
    "new": "new at a known server",
    "new_server": "came with a new server",
    "returned": "you rejected this text before",
    "unreadable": "nested too deep to be compared",
    "upgrade": "served before there were pins",
    "no_attack": "a change without an attack",
    "policy": "served as trust.changes says",
    "owner": "you approved it",
}

LATELY_DAYS = 7
MAX_CHANGED = 20
"""Changes that `pml trust` shows, and how long."""

_OLD_OPTIONS = frozenset({"--revoke", "--list"})


class TrustGroup(TyperGroup):
    """The group; a folder instead of a command is a project's, as before there were commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments, with the command that the old form means in front."""
        return super().parse_args(ctx, ["project", *args] if self._means_a_project(args) else args)

    def _first_word(self, args: list[str]) -> str | None:
        """Return the first argument that is neither an option nor the value of one."""
        takes_value = {name for option in self.params if not getattr(option, "is_flag", True) for name in option.opts}
        words = iter(args)
        for word in words:
            if word in takes_value:
                next(words, None)
            elif not word.startswith("-"):
                return word
        return None

    def _means_a_project(self, args: list[str]) -> bool:
        first = self._first_word(args)
        if first in self.commands:
            return False
        if not _OLD_OPTIONS.isdisjoint(args):
            return True
        # A word that is neither a folder nor like a command is more likely a mistyped folder.
        return first is not None and (Path(first).is_dir() or not nearest(first, self.commands))


trust_app = typer.Typer(name="trust", cls=TrustGroup, no_args_is_help=False)

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="server:tool, server__tool, or a server for what it says of itself."),
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="ID", help="All of one server that waits.", autocompletion=server_names),
]

EverythingOption = Annotated[bool, typer.Option("--all", help="All that waits.")]


@trust_app.callback(invoke_without_command=True)
def trust(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what is held back until you have looked at it, and whether this project's .pml.yaml is trusted.

    A folder instead of a command approves its project file: `pml trust DIR` is `pml trust project DIR`.

    Example: pml trust
    """
    if context.invoked_subcommand is not None:
        return
    store, file = TrustStore(Paths.from_environ().trust_file), find_project_file(Path.cwd())
    try:
        state = "" if file is None else store.standing(file)
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    try:
        known = _known(Command(config))
        waiting: list[Case] | None = [case for case in known if case.state in WAITING]
        changed, problem = _changed_lately(known), ""
    except ConfigurationError as error:
        # A project's file may be what is wrong with it, and how that stands is worth saying.
        waiting, changed, problem = None, [], str(error)
    if as_json:
        shown = None if file is None else {"file": str(file), "state": state}
        cases = None if waiting is None else [_as_json(case) for case in waiting]
        print_json(
            {
                "waiting": cases,
                "changed": [_as_json(case) for case in changed],
                "project": shown,
                **({"problem": problem} if problem else {}),
            }
        )
        raise typer.Exit(ExitCode.CONFIGURATION if problem else ExitCode.OK)
    if waiting is None:
        warn(f"what waits for your decision is not known: {problem}")
    else:
        if waiting:
            _print_cases(waiting)
        else:
            note("nothing waits for your decision")
        if changed:
            _print_cases(changed)
            note(f"these changes of the last {LATELY_DAYS} days are served; what changed: pml trust show NAME")
    if file is None:
        note(f"no {PROJECT_NAME} here")
    else:
        say(f"{file}: {state}")
    raise typer.Exit(ExitCode.CONFIGURATION if problem else ExitCode.OK)


def _changed_lately(known: list[Case]) -> list[Case]:
    """Return the newest change of each definition that was served, newest first."""
    since = time.time() - LATELY_DAYS * 86_400
    newest: dict[str, Case] = {}
    for case in sorted(known, key=lambda case: -case.at):
        if case.state == "changed" and case.at >= since:
            newest.setdefault(case.source, case)
    return list(newest.values())[:MAX_CHANGED]


@trust_app.command("list")
def list_definitions(
    every: Annotated[bool, typer.Option("--all", help="Also what was accepted and rejected.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the definitions that wait for your decision: held back, or accepted with their server and maybe an attack.

    Example: pml trust list --all
    """
    with failing(as_json=as_json):
        known = _known(Command(config))
    shown = known if every else [case for case in known if case.state in WAITING]
    if as_json:
        print_json([_as_json(case) for case in shown])
    elif shown:
        _print_cases(shown)
    else:
        note("nothing is pinned yet" if every else "nothing waits for your decision; --all lists what is pinned")


@trust_app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `pml trust list` shows it.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why a definition is held back, the words in question, and what differs from what was accepted.

    Of a server, show everything that is held back or was changed.

    Example: pml trust show github:create_issue
    """
    with failing(as_json=as_json):
        known = _known(Command(config))
        chosen = _of_server(known, name) or [_chosen(known, name)]
    if as_json:
        shown = [{**_as_json(each), "definition": each.definition, "before": each.before} for each in chosen]
        print_json(shown[0] if len(shown) == 1 else shown)
        return
    for each in chosen:
        _show_case(each)


def _of_server(known: list[Case], name: str) -> list[Case]:
    """Return what the owner may want to look at of the server of this name, in any spelling."""
    told = [case for case in known if case.state in (*WAITING, "changed")]
    return [case for case in told if name == case.server] or [
        case for case in told if words_of(name) == words_of(case.server)
    ]


def _show_case(chosen: Case) -> None:
    say(f"{escaped(chosen.source)}: {chosen.state}, {_said(chosen)}", style="bold")
    for finding in chosen.verdict.findings if chosen.verdict is not None else ():
        say(f"! {escaped(finding.where) or 'the whole'}: {', '.join(finding.classes)}", style="yellow")
        _print_indented(Text(f"{finding.why}:"))
        _print_indented(Text(printable(finding.text)))
    for change in chosen.changes:
        if change.before or change.after:
            _print_change(change)
    if chosen.state in WAITING:
        # Servers choose names, and this line is there to be copied into a shell.
        exact = shlex.quote(_exact(chosen))
        note(f"exactly this: pml trust approve {exact}, or pml trust reject {exact}")


@trust_app.command("approve")
def approve_definitions(
    names: NamesArgument = None,
    server: ServerOption = None,
    everything: EverythingOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept definitions exactly as they are now; running gateways serve them within a second.

    Example: pml trust approve github:create_issue
    """
    _decide(names or [], server, "approved", Command(config, as_json=as_json), everything=everything)


@trust_app.command("reject")
def reject_definitions(
    names: NamesArgument = None,
    server: ServerOption = None,
    everything: EverythingOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse definitions, also accepted ones: never served again, under no name and from no server.

    Example: pml trust reject weather:forecast
    """
    _decide(names or [], server, "rejected", Command(config, as_json=as_json), everything=everything)


def _decide(names: list[str], server: str | None, outcome: str, command: Command, *, everything: bool) -> None:
    from pml_gateway.trust.review import State, approved, rejected

    if sum((bool(names), server is not None, everything)) != 1:
        raise typer.BadParameter("name definitions, or use one of --server and --all", param_hint="NAME")
    with failing(as_json=command.as_json):
        known = _known(command)
        waiting = [case for case in known if case.state in WAITING]
        if server is not None:
            chosen = [case for case in waiting if case.server == server]
            if not chosen:
                raise UsageError(f"nothing of {server!r} waits for your decision", hint="pml trust list")
        else:
            # Who rejects means what is served or waits, and never what was rejected before.
            meant = [case for case in known if outcome == "approved" or case.state is not State.REJECTED]
            chosen = [_chosen(meant, name) for name in names] if names else waiting
        unreadable = [case.source for case in chosen if not case.digest]
        if unreadable and outcome == "approved":
            raise UsageError(f"{unreadable[0]} is nested too deep to be pinned", hint="it is never served")
        change = approved if outcome == "approved" else rejected
        try:
            _pins_file(command).change(lambda pins: change(pins, chosen, time.time()))
        except OSError as error:
            raise ConfigurationError(
                f"nothing is {outcome}: {command.paths.pins_dir} cannot be written ({error.strerror or error})",
                hint="make the folder writable, and see that the disk is not full",
            ) from error
    if command.as_json:
        state = State.ACCEPTED if outcome == "approved" else State.REJECTED
        print_json({outcome: [_as_json(replace(case, state=state)) for case in chosen]})
        return
    for case in chosen:
        say(f"{outcome}: {_exact(case)}")
    if not chosen:
        note("nothing waits for your decision")


def _known(command: Command) -> list[Case]:
    """Everything that is pinned of the configured servers.

    Raises:
        ConfigurationError: the configuration does not load.
    """
    from pml_gateway.trust.review import cases

    # Without any server nothing waits, which is no fault here.
    return cases(_pins_file(command).load(), load_settings(config_file=command.config_file).settings.servers)


def _pins_file(command: Command) -> PinsFile:
    from pml_gateway.trust.pins import PinsFile

    return PinsFile(command.paths.pins_dir, command.identity)


def _chosen(known: list[Case], name: str) -> Case:
    """Return the definition of this name, that which waits before others.

    Raises:
        UsageError: there is none, or several.
    """
    from pml_gateway.trust.review import named

    found = named(known, name)
    sources = [escaped(source) for source in dict.fromkeys(case.source for case in found)]
    if not found:
        raise UsageError(f"no definition {name!r} is pinned", hint="pml trust list --all")
    if len(sources) > 1:
        raise UsageError(f"{name!r} may be {', '.join(sources)}", hint="name one of them")
    alike = [case for case in found if case.state == found[0].state]
    if len(alike) > 1 and found[0].state in _SEVERAL:
        forms = ", ".join(map(_exact, alike))
        raise UsageError(f"several forms of {sources[0]} {_SEVERAL[found[0].state]}", hint=f"name one of them: {forms}")
    return found[0]


_SEVERAL = {"held": "wait", "rejected": "were rejected"}
"""States in which a name alone does not say which of several forms is meant."""


def _exact(case: Case) -> str:
    """One form of a definition as commands take it, in one line whatever its server calls it."""
    return f"{escaped(case.source)}@{case.digest[:SHOWN_OF_DIGEST]}"


def _as_json(case: Case) -> JsonObject:
    reasons = case.verdict.reasons if case.verdict is not None else ()
    return {
        "server": case.server,
        "kind": case.key[0].value,
        "name": case.key[1],
        "state": case.state.value,
        "because": case.because,
        "since": datetime.fromtimestamp(case.at, UTC).isoformat(timespec="seconds"),
        "digest": case.digest,
        "reasons": [each.as_json() for each in reasons],
        "changes": [{"where": each.where, "before": each.before, "after": each.after} for each in case.changes]
        if case.before is not None
        else None,
    }


def _print_cases(shown: list[Case]) -> None:
    print_table(
        ("STATE", "SINCE", "NAME", "WHY"),
        [
            (case.state, f"{datetime.fromtimestamp(case.at):%Y-%m-%d}", escaped(case.source), _because(case))
            for case in shown
        ],
    )


def _because(case: Case) -> str:
    if case.verdict is None or not case.verdict.classes:
        return _said(case)
    classes = ", ".join(case.verdict.classes)
    return f"{_said(case)}: {classes}" if case.verdict.is_attack else f"{_said(case)} (notice: {classes})"


def _said(case: Case) -> str:
    return "you rejected it" if case.state == "rejected" else _BECAUSE.get(case.because, case.because)


def _print_change(change: Change) -> None:
    if change.before is None or change.after is None:
        sign, style, text = ("+", "green", change.after) if change.before is None else ("-", "red", change.before)
        say(f"{sign} {escaped(change.where)}", style=style)
        _print_indented(Text(printable(text or ""), style=style))
        return
    say(f"~ {escaped(change.where)}", style="cyan")
    if not change.is_text:
        _print_indented(Text(f"- {printable(change.before)}", style="red"))
        _print_indented(Text(f"+ {printable(change.after)}", style="green"))
        return
    marks = {"-": ("[-", "-]", "red"), "+": ("{+", "+}", "green"), " ": ("", "", "")}
    merged = Text()
    for mark, words in change.words:
        opening, closing, style = marks[mark]
        merged.append(f"{opening}{printable(words)}{closing}", style=style)
    _print_indented(merged)


def _print_indented(text: Text) -> None:
    answers().print(Padding(text, (0, 0, 0, INDENT), expand=False))


@contextmanager
def failing(*, as_json: bool) -> Iterator[None]:
    """End the command with the message of an error of the gateway."""
    try:
        yield
    except GatewayError as error:
        fail(error, as_json=as_json)


trust_app.command()(lint)


@trust_app.command()
def project(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Project; default the current one.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the approval.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List what is approved.")] = False,
    yes: YesOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a project's .pml.yaml set more than its intent and a narrower exposure.

    What it sets and starts is shown before you are asked. The approval is for the file as it is now: after any change
    it is not trusted again. Until then its servers, clients and lists are ignored, and no server takes its program
    from the project's folder.

    Example: pml trust project ~/src/shop
    """
    if revoke and list_all:
        raise typer.BadParameter("use one of --revoke and --list", param_hint="--revoke")
    store = TrustStore(Paths.from_environ().trust_file)
    try:
        if list_all:
            _list(store, as_json=as_json)
        elif revoke:
            _revoke(store, directory or Path.cwd(), as_json=as_json)
        else:
            _trust(store, directory or Path.cwd(), Consent(yes, as_json=as_json))
    except ConfigurationError as error:
        fail(error, as_json=as_json)


def _trust(store: TrustStore, directory: Path, asked: Consent) -> None:
    file = find_project_file(directory)
    if file is None:
        raise ConfigurationError(f"no {PROJECT_NAME} in {directory.absolute()}", hint="name the project's directory")
    approval = proposed(file, store)
    if not asked.as_json:
        _show(approval)
    is_approved = asked.agrees(f"Approve {file} as it is now?", default=False)
    if is_approved:
        store.trust(file, approval.content)
    if asked.as_json:
        print_json(
            {
                "trusted": str(file) if is_approved else None,
                "file": str(file),
                "sha256": approval.sha256,
                "sets": approval.keys,
                "starts": approval.starts,
            }
        )
    elif is_approved:
        say(f"trusted: {file}")
        note(f"sha256 {approval.sha256}; a changed file has to be trusted again")
    elif asked.is_interactive:
        note("nothing was approved")
    if asked.is_impossible:
        refuse_unasked(as_json=asked.as_json, done="approved", remedy="--yes to approve this")


def _show(approval: Approval) -> None:
    note(f"{approval.file} would be approved, which")
    for key in approval.keys:
        note(f"  sets    {escaped(key)}")
    for start in approval.starts:
        warn(f"a server of this file: {escaped(start)}")
    note("and lets servers of your own that look for their program in this folder, such as npx, find it there")


def _revoke(store: TrustStore, directory: Path, *, as_json: bool) -> None:
    file = find_project_file(directory) or directory.absolute() / PROJECT_NAME
    was_trusted = store.revoke(file)
    if as_json:
        print_json({"revoked": str(file), "was_trusted": was_trusted})
    else:
        say(f"no longer trusted: {file}" if was_trusted else f"was not trusted: {file}")


def _list(store: TrustStore, *, as_json: bool) -> None:
    entries = store.entries()
    states = [(path, store.state(path), entry) for path, entry in entries.items()]
    if as_json:
        print_json(
            [
                {"file": str(path), "state": state, "sha256": entry.sha256, "trusted_at": entry.trusted_at.isoformat()}
                for path, state, entry in states
            ]
        )
    elif not states:
        note("no project file is trusted")
    else:
        print_table(
            ("STATE", "SINCE", "FILE"),
            [(state, f"{entry.trusted_at:%Y-%m-%d}", path) for path, state, entry in states],
        )
