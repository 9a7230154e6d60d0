"""`pml add`, `remove`, `enable`, `disable`, `rename`: the servers of the configuration, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile
from pml_gateway.cli.completion import server_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.init import HEAD, plan_report, show_plan
from pml_gateway.cli.output import ExitCode, fail, messages, note, print_diff, print_json, refuse_unasked, say, warn
from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import ClientFile
from pml_gateway.clients.importing import ImportedServer, ImportPlan, plan_import, safe_name
from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope, Variables
from pml_gateway.clients.paste import pasted
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.removed import RemovedServers
from pml_gateway.config.advice import variable_users
from pml_gateway.config.document import parse
from pml_gateway.config.edit import FileEdit, edit_file, set_values
from pml_gateway.config.entries import SECTIONS, section_of, with_new_name, with_texts, without_entry
from pml_gateway.config.layers import dotted
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.rename import Renaming, mentions
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.secrets.env_file import store_variables, stored_variables
from pml_gateway.serve.signals import run_until_signalled
from pml_gateway.text import counted, quoted, some_of, suggestion, words_of
from pml_gateway.trust.pins import Pins, PinsFile

if TYPE_CHECKING:
    from pml_gateway.reports.doctor.first_look import FirstLook, FollowingGateways

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, write nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Servers in `servers:`.", autocompletion=server_names)
]

SwitchedArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Servers in `servers:`, or SERVER:TOOL.", autocompletion=server_names),
]

SHOWN_TOOLS = 8


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


def _changed(
    paths: Paths,
    change: Callable[[str], str],
    asked: Consent,
    plan: ImportPlan | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Done:
    """Show the change, ask, store the plan's secrets, `prepare`, write the file, and tell the running gateways."""
    preview = edit_file(paths.config_file, change, dry_run=True)
    if not asked.as_json:
        print_diff(preview.diff)
    done = Done(preview, dict(plan.values) if plan else {})
    question = f"Write {preview.path if preview.has_changed else paths.secrets_file}?"
    if not (done.has_changed and asked.agrees(question)):
        return done
    if plan:
        store_variables(paths.secrets_file, plan.values, plan.freed)
    prepare()
    edit = edit_file(paths.config_file, change) if preview.has_changed else preview
    return replace(done, edit=edit, following=run_until_signalled(lambda: _tell(paths)))


async def _tell(paths: Paths) -> FollowingGateways:
    # The server stack takes 0.7 s to import, which a look at the change alone never needs.
    from pml_gateway.reports.doctor.first_look import tell_gateways

    return await tell_gateways(paths)


def _conclude(done: Done, asked: Consent) -> None:
    """Say what was written and who follows; refuse where nobody could be asked."""
    if done.following is not None:
        backup = f" (the text before is in {done.edit.backup})" if done.edit.backup else ""
        if done.edit.has_changed:
            note(f"wrote {done.edit.path}{backup}")
        if done.following.pids:
            note(f"{counted(len(done.following.pids), 'running gateway follows', 'running gateways follow')}")
        for problem in done.following.problems:
            warn(f"a running gateway does not follow: {problem}")
    elif done.has_changed and (asked.is_interactive or asked.dry_run):
        note("nothing was written")


def _end(done: Done, asked: Consent) -> None:
    if done.has_changed and asked.is_impossible:
        refuse_unasked(as_json=asked.as_json)


def _known(settings: Settings, name: str) -> UpstreamDefinition:
    if name in settings.servers:
        return settings.servers[name]
    raise UsageError(
        f"no server {name!r} is configured{suggestion(name, settings.servers)}",
        hint=f"known are {', '.join(settings.servers)}" if settings.servers else "add one: pml add NAME -- COMMAND",
    )


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
    words around it, a `claude mcp add` or `codex mcp add` line, or a registry's server.json. Credentials become
    ${env:NAME} references, whose values go to a file that only you can read. The server is tried once. Running gateways
    follow.

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
    try:
        file = _named(name, target or (), context.meta.get(_COMMAND), given)
        _add(file, asked, later=later, over=over, check=check and not disabled)
    except GatewayError as error:
        fail(error, as_json=as_json)


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
    paths, here = Paths.from_environ(), Path.cwd()
    settings = load_user_settings(paths)
    surroundings = replace(Surroundings.here(here), project=here)
    plan = plan_import([file], settings, surroundings, replaced=list(map(safe_name, file.entries)) if over else ())
    for each in plan.servers:
        _refuse_taken(each, settings)
    taken = [each.name for each in plan.servers if each.outcome == "added" and each.name in settings.servers]
    if any(each.outcome == "gateway" for each in plan.servers):
        raise UsageError("that is this gateway itself", hint="add the servers that are to stand behind it")
    _finish(plan, later)
    if not asked.as_json:
        show_plan(plan, (), (), paths, taken)
    additions = plan.additions

    def change(text: str) -> str:
        for name in set(taken) & _written(text, paths).keys():
            text = without_entry(text, section_of(text, paths.config_file, name), name, paths.config_file)
        for name in additions.keys() & _written(text, paths).keys():
            raise ConfigurationError(f"another program has added {name} just now", hint="run it again")
        section = section_of(text, paths.config_file)
        return set_values(text or HEAD, {section: additions}, paths.config_file) if additions else text

    done = _changed(paths, change, asked, plan)
    if done.is_written:
        replaced = {name: _definition(settings, name) for name in taken}
        RemovedServers(paths.removed_file).change(removed=replaced, added=additions.values())
    looks = _looked_at(plan, settings, paths, done.following, asked) if check and done.following is not None else {}
    if asked.as_json:
        checked = {name: look.as_json() for name, look in looks.items()}
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
        for name, look in looks.items():
            _say(name, look)
    _end(done, asked)
    if any(each.outcome == "skipped" for each in plan.servers):
        raise typer.Exit(ExitCode.FAILED)


def _say_unused(variables: Sequence[str]) -> None:
    if variables:
        note(f"no server reads {', '.join(variables)} any more: pml secrets remove {' '.join(variables)}")


def _written(text: str, paths: Paths) -> dict[str, Any]:
    """Return the servers of a configuration file by name, whatever their section is called."""
    values = parse(text, "user", paths.config_file).values
    return {name: entry for section in SECTIONS for name, entry in (values.get(section) or {}).items()}


def _refuse_taken(server: ImportedServer, settings: Settings) -> None:
    """Refuse a new server whose name another one has."""
    name = safe_name(server.entry_name)
    if server.outcome == "added" and server.name != name and name in settings.servers:
        raise UsageError(
            f"there is a server {name!r} already, another one", hint="choose another name, or add --replace"
        )


def _finish(plan: ImportPlan, later: Mapping[str, Any]) -> None:
    """Add to the definitions what no client writes."""
    for server in plan.servers:
        if server.definition is not None and server.outcome == "added":
            server.definition = {**server.definition, **later}


def _looked_at(
    plan: ImportPlan, settings: Settings, paths: Paths, following: FollowingGateways, asked: Consent
) -> dict[str, FirstLook]:
    """Each new server, tried once."""
    from pml_gateway.reports.doctor.first_look import first_look

    found: dict[str, FirstLook] = {}
    for name, raw in plan.additions.items():
        definition = UpstreamDefinition.model_validate(raw)
        if not definition.enabled:
            continue
        with messages().status(f"trying {name}"):
            look = partial(first_look, name, definition, settings.upstreams, paths, following)
            found[name] = run_until_signalled(look)
    return found


def _say(name: str, look: FirstLook) -> None:
    match look.outcome:
        case "ready":
            named = ", ".join(look.tools[:SHOWN_TOOLS])
            more = f" and {len(look.tools) - SHOWN_TOOLS} more" if len(look.tools) > SHOWN_TOOLS else ""
            say(f"{name} works: {counted(look.count, 'tool')}{f' ({named}{more})' if named else ''}", style="green")
            if look.hint:
                note(f"  {look.hint}")
        case "login_needed":
            warn(f"{name} asks for a login; run: {look.hint}")
        case "failed":
            warn(look.error)
            note(f"  {look.hint or 'after fixing that: pml doctor'}")
        case "starting":
            warn(f"{look.error}; a first start may still be installing it; pml upstreams shows when it is there")


def remove(
    names: NamesArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Take servers out of the configuration, with what was accepted of them. Their logins and stored secrets stay.

    `pml init` leaves them out from then on.

    Example: pml remove github --dry-run
    """
    asked, paths = Consent(yes, dry_run, as_json), Paths.from_environ()
    try:
        settings = load_user_settings(paths)
        for name in names:
            _known(settings, name)

        def change(text: str) -> str:
            for name in dict.fromkeys(names):
                text = without_entry(text, section_of(text, paths.config_file, name), name, paths.config_file)
            return text

        done = _changed(paths, change, asked)
        if done.is_written:
            gone = {name: _definition(settings, name) for name in names}
            RemovedServers(paths.removed_file).change(removed=gone, added=())
            _forget_pins(paths, names)
        values = parse(done.edit.after, "user", paths.config_file).values
        left = {name: list(map(dotted, mentions(values, name))) for name in names}
        unused = _unused_without(settings, names)
    except GatewayError as error:
        fail(error, as_json=as_json)
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
    _end(done, asked)


def _forget_pins(paths: Paths, names: Sequence[str]) -> None:
    """Forget what was accepted and held back of servers; what was rejected of them stays rejected."""
    file = PinsFile(paths.pins_dir, paths.identity(None))
    if not file.path.exists():
        return

    def without(pins: Pins) -> Pins:
        for name in names:
            pins = pins.without_server(name)
        return pins

    try:
        file.change(without)
    except OSError as error:
        warn(f"what was accepted of {', '.join(names)} stays in {file.path}, which cannot be written ({error})")


def _definition(settings: Settings, name: str) -> dict[str, Any]:
    return settings.servers[name].model_dump(mode="json", exclude_defaults=True)


def _unused_without(settings: Settings, names: Sequence[str]) -> list[str]:
    """Return the stored values that only these servers use."""
    rest = {name: definition for name, definition in settings.servers.items() if name not in names}
    used = variable_users(settings.model_copy(update={"servers": rest}))
    return sorted((variable_users(settings).keys() - used.keys()) & stored_variables().keys())


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
    try:
        settings = load_user_settings(paths)
        manifest = _last_manifest(paths, settings)
        concerned = [
            named for named in _switched(settings, names, manifest) if _is_enabled(settings, *named) is not is_on
        ]

        def change(text: str) -> str:
            for name, tool in concerned:
                if tool is not None:
                    section = section_of(text, paths.config_file, name)
                    switched = {"tools": {tool: {"enabled": is_on}}}
                    text = set_values(text, {section: {name: switched}}, paths.config_file)
                    continue
                # An entry that came from a client may say it the other way round.
                is_reversed = "disabled" in (_written(text, paths).get(name) or {})
                value = {"disabled": not is_on} if is_reversed else {"enabled": is_on}
                section = section_of(text, paths.config_file, name)
                text = set_values(text, {section: {name: value}}, paths.config_file)
            return text

        done = _changed(paths, change, asked)
    except GatewayError as error:
        fail(error, as_json=asked.as_json)
    if asked.as_json:
        print_json({"enabled" if is_on else "disabled": list(dict.fromkeys(names)), **done.as_json()})
    else:
        if not done.edit.has_changed:
            note(f"{', '.join(dict.fromkeys(names))}: {'enabled' if is_on else 'disabled'} already")
        _conclude(done, asked)
    _end(done, asked)


def _switched(settings: Settings, names: Sequence[str], manifest: Manifest) -> list[tuple[str, str | None]]:
    """Each server, with a tool of it where one is named: as SERVER:TOOL, SERVER__TOOL or as clients call it.

    Raises:
        UsageError: there is no such server, or it does not list such a tool.
    """
    qualified = {name: owned for owned, name in manifest.names.items()}
    named: list[tuple[str, str | None]] = []
    for name in dict.fromkeys(names):
        server, tool = name, None
        for mark in (":", "__"):
            before, found, after = name.partition(mark)
            if name not in settings.servers and found and after and before in settings.servers:
                server, tool = before, after
                break
        if name not in settings.servers and qualified.get(name, ("",))[0] in settings.servers:
            server, tool = qualified[name]
        definition = _known(settings, server if tool or ":" not in name else name.partition(":")[0])
        named.append((server, tool and _listed_tool(server, definition, tool, manifest.entries.get(server))))
    return named


def _last_manifest(paths: Paths, settings: Settings) -> Manifest:
    naming = settings.naming
    file = ManifestFile.of(paths.manifest_dir, paths.identity(None), naming.prefix, naming.max_length)
    return file.load()


def _listed_tool(server: str, definition: UpstreamDefinition, tool: str, entry: ManifestEntry | None) -> str:
    """Return the tool as its server calls it.

    Raises:
        UsageError: the server's list is known, and the tool is not on it.
    """
    if tool in definition.tools:
        return tool
    if entry is None or entry.fingerprint != definition.fingerprint():
        note(f"no gateway has listed the tools of {server} yet, so {tool!r} is not checked; pml tools lists them")
        return tool
    tools = [*entry.tools, *(each for variant in entry.differences.values() for each in variant.tools)]
    listed = list(dict.fromkeys(str(each.get("name")) for each in tools))
    respelled = [each for each in listed if words_of(each) == words_of(tool)]
    if tool in listed or len(respelled) == 1:
        return tool if tool in listed else respelled[0]
    raise UsageError(
        f"{server} has no tool {tool!r}{suggestion(tool, listed)}",
        hint=f"it lists {some_of(listed, SHOWN_TOOLS)}; pml tools shows all, pml refresh asks it again"
        if listed
        else "it lists no tools; pml refresh asks it again",
    )


def _is_enabled(settings: Settings, server: str, tool: str | None) -> bool:
    definition = settings.servers[server]
    return definition.enabled if tool is None else tool not in definition.disabled_tools


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
    try:
        settings = load_user_settings(paths)
        definition = _known(settings, name)
        _check_new(name, new, settings)
        renaming = _renaming(paths, settings, name, new)
        opened = _opened(settings, renaming)
        for place in () if as_json else opened:
            warn(f"{place} gives tools of this server under its new name, which it did not before")

        def change(text: str) -> str:
            section = section_of(text, paths.config_file, name)
            changes = renaming.changes(parse(text, "user", paths.config_file).values)
            text = with_texts(text, changes, paths.config_file)
            return with_new_name(text, section, name, new, paths.config_file)

        done = _changed(paths, change, asked, prepare=lambda: _copy_state(paths, settings, name, new))
        if done.is_written:
            _drop_state(paths, definition, name, new)
        rewritten = renaming.changes(parse(done.edit.before, "user", paths.config_file).values)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json(
            {
                "renamed": {name: new},
                "rewritten": list(map(dotted, rewritten)),
                "also_given_by": opened,
                **done.as_json(),
            }
        )
    else:
        _conclude(done, asked)
        if done.is_written:
            note(f"calls by {name}__... end; if {PROJECT_NAME} files or variables say {name}, change them by hand")
    _end(done, asked)


def _copy_state(paths: Paths, settings: Settings, name: str, new: str) -> None:
    # What reads logins takes a second to import, which a look at the change alone never needs.
    from pml_gateway.owner.server_state import copy_state

    copy_state(paths, settings, name, new)


def _drop_state(paths: Paths, definition: UpstreamDefinition, name: str, new: str) -> None:
    from pml_gateway.owner.server_state import drop_state

    drop_state(paths, definition, name, new)


def _renaming(paths: Paths, settings: Settings, name: str, new: str) -> Renaming:
    return Renaming(
        name,
        new,
        _last_manifest(paths, settings).names_beginning_with(name),
        frozenset(settings.servers.keys() - {name}),
    )


def _check_new(name: str, new: str, settings: Settings) -> None:
    if new == name:
        raise UsageError(f"it is called {name!r} already", hint="give another name")
    if safe_name(new) != new:
        raise UsageError(
            f"{new!r} cannot be a server's name", hint=f"use letters, digits, _, . and -, as in {safe_name(new)!r}"
        )
    if new == "workflows" and settings.workflows:
        raise UsageError("the configuration's workflows have the name 'workflows'", hint="give another name")
    if new in settings.servers:
        raise UsageError(f"there is a server {new!r} already", hint=f"choose another name, or first: pml remove {new}")


def _opened(settings: Settings, renaming: Renaming) -> list[str]:
    """Return the rules that give something of the server by its new name alone."""
    rules = {f"clients.{client}.allow": each.allow for client, each in settings.clients.items()}
    rules["gateway.hybrid.whitelisted_tools"] = settings.gateway.hybrid.whitelisted_tools
    return [f"{place}: {entry!r}" for place, entries in rules.items() for entry in entries if renaming.opens(entry)]
