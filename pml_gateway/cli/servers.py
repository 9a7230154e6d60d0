"""`pml add`, `remove`, `enable`, `disable`, `rename`: the servers of the configuration, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.consent import Consent, DryRunOption, YesOption
from pml_gateway.cli.context import JsonOption
from pml_gateway.cli.init import plan_report, show_plan
from pml_gateway.cli.output import (
    ExitCode,
    messages,
    note,
    note_written,
    print_diff,
    print_json,
    say,
    warn,
)
from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import ClientFile
from pml_gateway.clients.importing import ImportPlan
from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope, Variables
from pml_gateway.clients.paste import pasted
from pml_gateway.config.document import parse
from pml_gateway.config.edits.edit import FileEdit
from pml_gateway.config.edits.rename import mentions
from pml_gateway.config.findings import Finding, Severity
from pml_gateway.config.layers import dotted
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import LogSettings, Settings
from pml_gateway.errors import UsageError
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.serve.signals import run_until_signalled
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.servers import (
    SHOWN_TOOLS,
    addition,
    checked_renaming,
    last_manifest,
    newly_given,
    removal,
    renamed,
    rewritten,
    switched_servers,
    switching,
    unused_without,
)
from pml_gateway.telemetry import logs
from pml_gateway.text import counted, quoted
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.setup.first_look import FollowingGateways

NamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Servers in `servers:`.", autocompletion=server_names)
]

SwitchedArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Servers in `servers:`, or SERVER:TOOL.", autocompletion=server_names),
]


@dataclass(frozen=True, slots=True)
class Done:
    """Outcome of a change of the file, and the running gateways that follow it."""

    edit: FileEdit
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    following: FollowingGateways | None = None

    @property
    def has_changed(self) -> bool:
        """Return True if anything differs: replacing a key leaves the configuration as it was."""
        return self.edit.has_changed or bool(self.values)

    @property
    def is_written(self) -> bool:
        """Return True if the change was made."""
        return self.following is not None

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "config": str(self.edit.path),
            "backup": str(self.edit.backup) if self.edit.backup else None,
            "changed": self.has_changed,
            "written": self.is_written,
            "diff": self.edit.diff,
            "gateways": list(self.following.pids) if self.following else [],
            "gateway_problems": list(self.following.problems) if self.following else [],
        }


def _changed(change: ConfigurationChange, asked: Consent) -> Done:
    """Show the change, ask, write it, and tell the running gateways."""
    preview = change.preview()
    if not asked.as_json:
        print_diff(preview.diff)
    done = Done(preview, change.values)
    question = f"Write {preview.path if preview.has_changed else change.paths.secrets_file}?"
    if not (done.has_changed and asked.agrees(question)):
        return done
    edit = change.write()
    following = run_until_signalled(lambda: _tell(change.paths))
    if warning := change.conclude():
        warn(warning)
    return replace(done, edit=edit, following=following)


async def _tell(paths: Paths) -> FollowingGateways:
    # The server stack takes 0.7 s to import, which a look at the change alone never needs.
    from pml_gateway.setup.first_look import tell_gateways

    return await tell_gateways(paths)


def _conclude(done: Done, asked: Consent) -> None:
    """Say what was written and who follows; refuse where nobody could be asked."""
    if done.following is not None:
        if done.edit.has_changed:
            note_written(done.edit.path, done.edit.backup)
        if done.following.pids:
            note(f"{counted(len(done.following.pids), 'running gateway follows', 'running gateways follow')}")
        if done.following.other_replicas:
            note(f"make the same change at {counted(done.following.other_replicas, 'other replica')}")
        for problem in done.following.problems:
            warn(f"a running gateway does not follow: {problem}")
    elif done.has_changed and (asked.is_interactive or asked.dry_run):
        note("nothing was written")


COMMAND_LINE = KnownClient("command-line", "the command line", (), variables=Variables.ANY)
_COMMAND = "pml add: the command"


class AddCommand(TyperCommand):
    """Keeps what stands behind `--` as it is: the server's command, whose options are not those of `pml add`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command off the line."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND], args = args[at + 1 :], args[:at]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


ADD_OPTIONS = {"cls": AddCommand}


def add(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="What to call the server.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL | JSON | -- COMMAND...]", help="Its URL, its JSON, or its command."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="KEY=VALUE", help="A variable.")] = None,
    env_file: Annotated[str | None, typer.Option("--env-file", metavar="FILE", help="NAME=value lines.")] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="The folder it runs in.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="Sent with every request.")
    ] = None,
    bearer: Annotated[
        str | None,
        typer.Option("--bearer-token-env-var", metavar="NAME", help="The variable that holds its bearer token."),
    ] = None,
    transport: Annotated[
        str | None, typer.Option("--transport", "-t", metavar="HOW", help="stdio, http or sse; follows from the rest.")
    ] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="ID", help="For its login.")] = None,
    client_secret: Annotated[
        str | None, typer.Option("--client-secret", metavar="SECRET", help="For its login.")
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0.001, help="Seconds a call may take.")] = None,
    connect_timeout: Annotated[
        float | None, typer.Option("--connect-timeout", min=0.001, help="Seconds its start may take.")
    ] = None,
    per_client: Annotated[bool, typer.Option("--per-client", help="Every client gets a session of its own.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Do not start it yet.")] = False,
    over: Annotated[bool, typer.Option("--replace", help="Replace the server of this name.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Try it once it is written.")] = True,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a server: by its command behind --, its URL, or the block that its page says to paste.

    Without either, what is pasted or piped in is read: the block of any client, whole or a part, in a fence or with
    words around it, or a `claude mcp add` or `codex mcp add` line. Credentials become ${env:NAME} references, whose
    values go to a file that only you can read. The server is tried once. Running gateways follow.

    Example: pml add github --env GITHUB_TOKEN=ghp_x -- npx -y @modelcontextprotocol/server-github

    Example: pml add linear https://mcp.linear.app/mcp
    """
    given: dict[str, Any] = {
        "env": _pairs(env or (), "=", "--env KEY=VALUE"),
        "env_file": env_file,
        "cwd": str(Path(cwd).expanduser().absolute()) if cwd is not None else None,
        "headers": _pairs(header or (), ":", "--header 'NAME: VALUE'"),
        "transport": transport,
        "call_timeout": timeout,
        "connect_timeout": connect_timeout,
        "enabled": False if disabled else None,
    }
    if bearer is not None:
        given["headers"] = {"Authorization": f"Bearer ${{env:{bearer}}}", **given["headers"]}
    if client_id or client_secret:
        given["auth"] = {"client_id": client_id, "client_secret": client_secret}
    later = {"sessions": "per_client"} if per_client else {}
    given = {key: value for key, value in given.items() if value not in (None, {})}
    asked = Consent(yes, dry_run, as_json)
    file = _named(name, target or (), context.meta.get(_COMMAND), given)
    _add(file, asked, later=later, over=over, check=check and not disabled)


def _pairs(texts: Sequence[str], mark: str, option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, found, value = text.partition(mark)
        if not found or not key.strip():
            # Without the text, which may be the secret.
            raise typer.BadParameter("names no value", param_hint=option)
        pairs[key.strip()] = value if mark == "=" else value.strip()
    return pairs


def _named(name: str | None, target: Sequence[str], command: list[str] | None, given: dict[str, Any]) -> ClientFile:
    """Return the command line as a client's file; without a command or URL, the pasted text."""
    url = target[0] if target else None
    written = next((text for text in (name, url) if text is not None and text.lstrip()[:1] in ("{", "[", '"')), None)
    if command is None and url is None and "://" in (name or "") and written is None:
        raise UsageError("the server has no name", hint=f"name it: pml add NAME {name}")
    if command is None and (written is not None or url is None):
        file = pasted(written if written is not None else _read(name), None if name == written else name)
        if not given:
            return file
        return replace(file, entries={key: _laid_over(entry, given) for key, entry in file.entries.items()})
    if name is None or command == [] or (command is not None and url is not None):
        raise UsageError(
            "it is not clear what to add",
            hint=f"pml add {quoted(name or 'NAME')} -- COMMAND..., or pml add {quoted(name or 'NAME')} URL",
        )
    if url is not None and "://" not in url and not url.startswith("${"):
        raise UsageError(f"{url!r} is no URL", hint=f"a command stands behind --: pml add {name} -- {url} ...")
    if len(target) > 1:
        raise UsageError(
            f"there is more behind the URL: {target[1]!r}", hint=f"pml add {quoted(name)} {url}, and options"
        )
    if command is not None:
        entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    else:
        entry = {"url": url}
    place = FileLocation(Scope.PROJECT, "", ())
    entries = {name: entry | given}
    return ClientFile(COMMAND_LINE, place, Path("the command line"), Block(FileFormat.JSON, ()), True, entries=entries)


def _laid_over(entry: Any, given: Mapping[str, Any]) -> Any:
    if not isinstance(entry, dict):
        return entry
    nested = {key: {**(entry.get(key) or {}), **value} for key, value in given.items() if isinstance(value, dict)}
    return {**entry, **given, **nested}


def _read(name: str | None) -> str:
    if sys.stdin.isatty():
        note(f"paste the block or command line of {name or 'the servers'}, then press Ctrl-D on a line of its own:")
    return sys.stdin.read()


def _add(file: ClientFile, asked: Consent, *, later: Mapping[str, Any], over: bool, check: bool) -> None:
    paths = Paths.from_environ()
    added = addition(paths, file, Path.cwd(), later=later, replaces=over)
    plan = added.plan
    if not asked.as_json:
        show_plan(plan, (), (), paths, added.taken)
    done = _changed(added.change, asked)
    looks = _looked_at(plan, paths, done.following) if check and done.following is not None else []
    if asked.as_json:
        checked = {row["server"]: _check_report(row) for row in looks}
        print_json(
            {**plan_report(plan, done.edit, paths, is_written=done.is_written), **done.as_json(), "checks": checked}
        )
    else:
        if done.is_written and plan.values:
            note(f"wrote {counted(len(plan.values), 'value')} to {paths.secrets_file}, which only you can read")
        if not done.has_changed and not any(each.outcome == "skipped" for each in plan.servers):
            note("there is nothing to add; --replace writes a server as it is given here")
        _conclude(done, asked)
        if done.is_written:
            _say_unused(plan.unused)
        for row in looks:
            _say(row)
    if done.has_changed:
        asked.refuse_if_impossible()
    if any(each.outcome == "skipped" for each in plan.servers):
        raise typer.Exit(ExitCode.FAILED)


def _say_unused(variables: Sequence[str]) -> None:
    if variables:
        note(f"no server reads {', '.join(variables)} any more: pml secrets remove {' '.join(variables)}")


def _looked_at(plan: ImportPlan, paths: Paths, following: FollowingGateways) -> list[JsonObject]:
    """Return the status of each new server, tried once; what it lists is kept."""
    from pml_gateway.setup.first_look import first_look

    # A fault is told as the outcome; the log would say it again.
    logs.configure(LogSettings(level="error"))
    settings, found = load_user_settings(paths), []
    for name in plan.additions:
        if settings.servers[name].enabled:
            with messages().status(f"trying {name}"):
                found.append(run_until_signalled(partial(first_look, name, settings, paths, following)))
    return found


def _check(row: JsonObject) -> tuple[str, Finding]:
    """Return the outcome of a first look in a word, and its finding."""
    from pml_gateway.setup.first_look import first_finding

    finding = first_finding(row)
    if finding.severity is Severity.ERROR:
        return "login_needed" if row["auth"]["state"] == "login_needed" else "failed", finding
    return "starting" if finding.severity is Severity.NOTE else "ready", finding


def _check_report(row: JsonObject) -> JsonObject:
    outcome, finding = _check(row)
    works = outcome == "ready"
    return {
        "state": outcome,
        "tools": row["tools"],
        "names": row.get("names", []),
        "error": None if works else f"{finding.subject}: {finding.what}",
        "hint": (f"{finding.what}: {finding.fix}" if finding.is_fault else None) if works else finding.fix or None,
    }


def _say(row: JsonObject) -> None:
    name, tools, (outcome, finding) = row["server"], row.get("names", []), _check(row)
    match outcome:
        case "ready":
            named = ", ".join(tools[:SHOWN_TOOLS])
            more = f" and {len(tools) - SHOWN_TOOLS} more" if len(tools) > SHOWN_TOOLS else ""
            say(f"{name} works: {counted(row['tools'], 'tool')}{f' ({named}{more})' if named else ''}", style="green")
            if finding.is_fault:
                note(f"  {finding.what}: {finding.fix}")
        case "login_needed":
            warn(f"{name} asks for a login; run: {finding.fix}")
        case "failed":
            warn(f"{name}: {finding.what}")
            note(f"  {finding.fix or 'after fixing that: pml doctor'}")
        case "starting":
            said = f"{name} {finding.what}"
            warn(f"{said}; a first start may still be installing it; pml upstreams shows when it is there")


def remove(
    names: NamesArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Take servers out of the configuration, with what was accepted of them. Their logins and stored secrets stay.

    `pml init` leaves them out from then on.

    Example: pml remove github --dry-run
    """
    asked, paths = Consent(yes, dry_run, as_json), Paths.from_environ()
    settings = load_user_settings(paths)
    done = _changed(removal(paths, settings, names), asked)
    values = parse(done.edit.after, "user", paths.config_file).values
    left = {name: list(map(dotted, mentions(values, name))) for name in names}
    unused = unused_without(settings, names)
    if as_json:
        print_json(
            {"removed": list(dict.fromkeys(names)), "still_named_in": left, "unused_secrets": unused, **done.as_json()}
        )
    else:
        for name, places in left.items():
            if places:
                note(f"{name} is still named in {', '.join(places)}")
        _conclude(done, asked)
        if done.is_written:
            _say_unused(unused)
    if done.has_changed:
        asked.refuse_if_impossible()


def enable(
    names: SwitchedArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Start servers again that were disabled; their tools come back. With SERVER:TOOL, give clients one tool again.

    Example: pml enable github --dry-run
    """
    _switch(names, Consent(yes, dry_run, as_json), is_on=True)


def disable(
    names: SwitchedArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Stop servers, and take their tools away, until they are enabled again. Everything else of them stays.

    With SERVER:TOOL, one tool is taken away: it is on no list, and calls of it are answered with NOT_FOUND.

    Example: pml disable github:delete_repository --dry-run
    """
    _switch(names, Consent(yes, dry_run, as_json), is_on=False)


def _switch(names: Sequence[str], asked: Consent, *, is_on: bool) -> None:
    paths = Paths.from_environ()
    settings = load_user_settings(paths)
    named = switched_servers(settings, names, last_manifest(paths, settings))
    for each in named:
        if not each.is_listed:
            note(
                f"no gateway has listed the tools of {each.server} yet, so {each.tool!r} is not checked; "
                "pml tools lists them"
            )
    done = _changed(switching(paths, settings, named, is_on=is_on), asked)
    if asked.as_json:
        print_json({"enabled" if is_on else "disabled": list(dict.fromkeys(names)), **done.as_json()})
    else:
        if not done.edit.has_changed:
            note(f"{', '.join(dict.fromkeys(names))}: {'enabled' if is_on else 'disabled'} already")
        _conclude(done, asked)
    if done.has_changed:
        asked.refuse_if_impossible()


def rename(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A server in `servers:`.", autocompletion=server_names)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What to call it from now on.")],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a server another name. All that is known of it goes with it, and rules and workflows of your file follow.

    Calls by the old name are answered with NOT_FOUND.

    Example: pml rename github gh --dry-run
    """
    asked, paths = Consent(yes, dry_run, as_json), Paths.from_environ()
    settings = load_user_settings(paths)
    renaming = checked_renaming(paths, settings, name, new)
    opened = newly_given(settings, renaming)
    for place in () if as_json else opened:
        warn(f"{place} gives tools of this server under its new name, which it did not before")
    change = ConfigurationChange(
        paths,
        lambda text: renamed(text, renaming, paths.config_file),
        prepare=lambda: _copy_state(paths, settings, name, new),
    )
    done = _changed(change, asked)
    if done.is_written:
        _drop_state(paths, settings.servers[name], name, new)
    if as_json:
        print_json(
            {
                "renamed": {name: new},
                "rewritten": list(map(dotted, rewritten(done.edit.before, renaming, paths.config_file))),
                "also_given_by": opened,
                **done.as_json(),
            }
        )
    else:
        _conclude(done, asked)
        if done.is_written:
            note(f"calls to {name}__... now fail; if {PROJECT_NAME} files or variables say {name}, change them by hand")
    if done.has_changed:
        asked.refuse_if_impossible()


def _copy_state(paths: Paths, settings: Settings, name: str, new: str) -> None:
    # What reads logins takes a second to import, which a look at the change alone never needs.
    from pml_gateway.setup.server_state import copy_state

    copy_state(paths, settings, name, new)


def _drop_state(paths: Paths, definition: UpstreamDefinition, name: str, new: str) -> None:
    from pml_gateway.setup.server_state import drop_state

    drop_state(paths, definition, name, new)
