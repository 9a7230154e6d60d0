"""`pml trust`: what is held back for its owner to look at, and what a project's `.pml.yaml` may do."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperGroup

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, bring_up_to_date
from pml_gateway.cli.output import (
    INDENT,
    ExitCode,
    answers,
    note,
    print_json,
    print_table,
    printable,
    say,
    warn,
)
from pml_gateway.cli.trust_lint import lint
from pml_gateway.config.load import load_settings
from pml_gateway.config.project import find_project_file
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.setup.approval import Approval, proposed
from pml_gateway.text import escaped, nearest

if TYPE_CHECKING:
    from pml_gateway.trust.pins_file import PinsFile
    from pml_gateway.trust.review import Case, Change, Outcome


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
    from pml_gateway.trust.review import LATELY_DAYS, changed_lately

    store, file = TrustStore(Paths.from_environ().trust_file), find_project_file(Path.cwd())
    state = "" if file is None else store.standing(file)
    try:
        known = _known(Command(config))
        waiting: list[Case] | None = [case for case in known if case.is_waiting]
        changed, problem = changed_lately(known, time.time()), ""
    except ConfigurationError as error:
        # A project's file may be what is wrong with it, and how that stands is worth saying.
        waiting, changed, problem = None, [], str(error)
    if as_json:
        shown = None if file is None else {"file": str(file), "state": state}
        cases = None if waiting is None else [case.as_json() for case in waiting]
        print_json(
            {
                "waiting": cases,
                "changed": [case.as_json() for case in changed],
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


@trust_app.command("list")
def list_definitions(
    every: Annotated[bool, typer.Option("--all", help="Also what was accepted and rejected.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the definitions that wait for your decision: held back, or accepted with their server and maybe an attack.

    Example: pml trust list --all
    """
    known = _known(Command(config))
    shown = known if every else [case for case in known if case.is_waiting]
    if as_json:
        print_json([case.as_json() for case in shown])
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
    from pml_gateway.trust.review import meant, of_server

    known = _known(Command(config))
    chosen = of_server(known, name) or [meant(known, name)]
    if as_json:
        shown = [{**each.as_json(), "definition": each.definition, "before": each.before} for each in chosen]
        print_json(shown[0] if len(shown) == 1 else shown)
        return
    for each in chosen:
        _show_case(each)


def _show_case(chosen: Case) -> None:
    say(f"{escaped(chosen.source)}: {chosen.state}, {chosen.why}", style="bold")
    for finding in chosen.verdict.findings if chosen.verdict is not None else ():
        say(f"! {escaped(finding.where) or 'the whole'}: {', '.join(finding.classes)}", style="yellow")
        _print_indented(Text(f"{finding.why}:"))
        _print_indented(Text(printable(finding.text)))
    for change in chosen.changes:
        if change.before or change.after:
            _print_change(change)
    if chosen.is_waiting:
        # Servers choose names, and this line is there to be copied into a shell.
        exact = shlex.quote(chosen.exact)
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


def _decide(names: list[str], server: str | None, outcome: Outcome, command: Command, *, everything: bool) -> None:
    from pml_gateway.trust.review import State, decide, selected

    if sum((bool(names), server is not None, everything)) != 1:
        raise typer.BadParameter("name definitions, or use one of --server and --all", param_hint="NAME")
    file = _pins_file(command)
    chosen = selected(_known(command, file), names, server, outcome)
    decide(file, chosen, outcome, time.time())
    if command.as_json:
        state = State.ACCEPTED if outcome == "approved" else State.REJECTED
        print_json({outcome: [replace(case, state=state).as_json() for case in chosen]})
        return
    for case in chosen:
        say(f"{outcome}: {case.exact}")
    if not chosen:
        note("nothing waits for your decision")


def _known(command: Command, file: PinsFile | None = None) -> list[Case]:
    """Everything that is pinned of the configured servers.

    Raises:
        ConfigurationError: the configuration does not load.
    """
    from pml_gateway.trust.review import cases

    # Without any server nothing waits, which is no fault here.
    pins = (file or _pins_file(command)).load()
    return cases(pins, load_settings(config_file=command.config_file).settings.servers)


def _pins_file(command: Command) -> PinsFile:
    from pml_gateway.trust.pins_file import PinsFile

    documents = command.shared_documents()
    file = PinsFile(command.paths.pins_dir, command.identity, documents=documents)
    bring_up_to_date(documents)
    return file


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
        return case.why
    classes = ", ".join(case.verdict.classes)
    return f"{case.why}: {classes}" if case.verdict.is_attack else f"{case.why} (notice: {classes})"


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


trust_app.command()(lint)


@trust_app.command()
def project(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Project; default the current one.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the approval.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List what is approved.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
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
    if list_all:
        _list(store, as_json=as_json)
    elif revoke:
        _revoke(store, directory or Path.cwd(), as_json=as_json)
    else:
        _trust(store, directory or Path.cwd(), Consent(yes, as_json=as_json))


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
    asked.refuse_if_impossible(done="approved", remedy="--yes to approve this")


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
