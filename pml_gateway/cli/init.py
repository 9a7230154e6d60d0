"""`pml init`: bring the servers of the clients on this machine into the gateway's configuration."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pml_gateway.cli.completion import known_client_names
from pml_gateway.cli.consent import Consent, DryRunOption, YesOption
from pml_gateway.cli.context import Command, JsonOption
from pml_gateway.cli.local import StartOption, start_now
from pml_gateway.cli.output import (
    ExitCode,
    note,
    note_written,
    print_diff,
    print_json,
    print_table,
    say,
    warn,
)
from pml_gateway.clients.discover import SKIPPED, ClientFile, client_files, known_client
from pml_gateway.clients.importing import REMOVED, ImportPlan, plan_import, read_source, removed_servers
from pml_gateway.clients.known import CLIENT_NAMES
from pml_gateway.clients.model import Scope
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.removed import RemovedServers
from pml_gateway.config.edits.edit import FileEdit, edit_file
from pml_gateway.config.load import load_user_settings
from pml_gateway.config.masked import masked_start
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.paths import Paths
from pml_gateway.secrets.env_file import store_variables
from pml_gateway.setup.servers import with_servers
from pml_gateway.text import counted

SHOWN_PROJECTS = 3
"""More are counted: `pml clients` lists those that have servers."""


def init(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Read this file instead of the clients' own.")
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help=f"Only this client; repeatable: {', '.join(CLIENT_NAMES)}.",
            autocompletion=known_client_names,
        ),
    ] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Also files of this project, which others may have written.")
    ] = False,
    removed: Annotated[
        bool, typer.Option("--removed", help="Also servers that you took out with `pml remove`.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    start: StartOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the MCP servers of your clients into ~/.pml/config.yaml.

    Finds the files of Claude Code, Claude Desktop, Cursor, VS Code, Windsurf, Gemini CLI, Codex and Zed, merges what is
    there twice, and turns credentials into ${env:NAME} references, whose values go to a file that only you can read.
    The clients' files are not changed. Later runs only add, and leave out what `pml remove` took out.

    Example: pml init --client claude-code --dry-run
    """
    paths = Paths.from_environ()
    surroundings = Surroundings.here(Path.cwd())
    clients = [known_client(name).name for name in client or ()]
    found = read_source(source, surroundings) if source else client_files(surroundings, clients or CLIENT_NAMES)
    present = [file for file in found if file.exists]
    asked = Consent(yes, dry_run, as_json)
    is_interactive = asked.is_interactive
    chosen = [file for file in present if file.scope is not Scope.PROJECT or project or source]
    left = [file for file in present if file not in chosen and file.entries]
    if not as_json:
        _show_files(present, found)
    if left and is_interactive:
        for file in list(left):
            if typer.confirm(f"Also import {len(file.entries)} of this project's {file.path.name}?", default=False):
                chosen.append(file)
                left.remove(file)
    readable, record = [file for file in chosen if not file.problem], RemovedServers(paths.removed_file)
    out = {} if removed else record.names()
    settings = load_user_settings(paths)
    plan = plan_import(readable, settings, surroundings, removed=out)
    if not source and (gone := removed_servers(record, plan, settings, paths.removed_file)) is not None:
        plan = plan_import([*readable, gone], settings, surroundings, removed=out)
    additions = plan.additions
    edit = partial(edit_file, paths.config_file, lambda text: with_servers(text, additions, (), paths.config_file))
    preview = edit(dry_run=True)
    if not as_json:
        show_plan(plan, left, chosen, paths)
        if preview.has_changed and not preview.path.exists():
            note(f"{preview.path} is not there yet and will be made:")
        print_diff(preview.diff)
    done, is_written = preview, False
    if preview.has_changed and asked.agrees(f"Write {preview.path}?"):
        store_variables(paths.secrets_file, plan.values)
        done = edit()
        record.change(removed={}, added=additions.values())
        is_written = True
    broken = [file for file in found if file.problem and not file.is_skipped]
    if as_json:
        print_json(_report(plan, present, left, done, paths, is_written=is_written))
    else:
        _conclude(plan, chosen, done, paths, is_written=is_written, is_refused=is_interactive or dry_run)
    if is_written and (start or not as_json):
        start_now(Command(as_json=as_json), start, may_ask=is_interactive)
    if done.has_changed:
        asked.refuse_if_impossible()
    if broken:
        raise typer.Exit(ExitCode.CONFIGURATION)
    if not present:
        raise typer.Exit(ExitCode.FAILED)


def _show_files(present: Sequence[ClientFile], looked_at: Sequence[ClientFile]) -> None:
    if not present:
        note("no configuration of a known client was found; these places were looked at:")
        for path in dict.fromkeys(file.path for file in looked_at):
            note(f"  {path}")
        note("name a file: pml init --from FILE")
        return
    # What is wrong with a file is wrong with all of its blocks.
    listed = [file for file in present if file.entries or not file.project]
    print_table(
        ("CLIENT", "SCOPE", "SERVERS", "FILE"),
        [
            (*_whose(file), SKIPPED if file.is_skipped else "broken" if file.problem else len(file.entries), file.where)
            for file in listed
        ],
    )
    for file in listed:
        if file.problem:
            warn(f"{file.path} {file.problem}{'' if file.is_skipped else '; it is left out'}")
    for file in present:
        if file.elsewhere:
            others = counted(len(file.elsewhere), "other project")
            named = ", ".join(file.elsewhere[:SHOWN_PROJECTS])
            more = ", ..." if len(file.elsewhere) > SHOWN_PROJECTS else ""
            note(f"{file.path} also has servers of {others}, {named}{more}; run `pml init` there")
    say()


def _whose(file: ClientFile) -> tuple[str, str]:
    """Client and scope, where a file is not just like that of a client."""
    if not file.is_copy:
        return file.client.name, file.scope
    return "unknown" if file.problem else f"like {file.client.name}", ""


_OUTCOMES = {
    "added": "add",
    "replaced": "replaced",
    "merged": "the same as {name}",
    "present": "is there already as {name}",
    "removed": "leave out, you removed it",
    "skipped": "skip",
    "gateway": "this gateway, left out",
}


def show_plan(
    plan: ImportPlan,
    left: Sequence[ClientFile],
    chosen: Sequence[ClientFile],
    paths: Paths,
    replaced: Collection[str] = (),
) -> None:
    """Say what an import would add or put in the place of servers, and what is left out, moved or missing."""
    if plan.servers:
        print_table(
            ("SERVER", "FROM", "RESULT", "STARTS"),
            [
                (
                    server.entry_name,
                    server.file.origin,
                    _OUTCOMES["replaced" if server.name in replaced else server.outcome].format(name=server.name),
                    _start(server.definition) if server.outcome == "added" else "",
                )
                for server in plan.servers
            ],
        )
        say()
    for server in plan.servers:
        label = server.name or server.entry_name
        for problem in server.problems:
            warn(f"{label}: {problem}")
        for remark in server.notes:
            note(f"{label}: {remark}")
    for file in left:
        note(
            f"{file.path} has {counted(len(file.entries), 'server')}, "
            "which anyone who can write to this project chose: --project"
        )
    if plan.secrets:
        note(counted(len(plan.secrets), "credential becomes a reference", "credentials become references") + ":")
        for secret in plan.secrets:
            made = "" if paths.secrets_file.exists() else ", which will be made"
            stored = f"its value goes to {paths.secrets_file}{made}"
            place = stored if secret.is_stored else "is set already to the same value"
            note(f"  ${{env:{secret.variable}}}  {', '.join(secret.used_by)}; {place}")
    if plan.missing:
        note("these variables are needed and not set; store them, or export them where the gateway starts:")
        for item in plan.missing:
            about = f"  ({item.about})" if item.about else ""
            note(f"  pml secrets set {item.variable}   # {', '.join(item.used_by)}{about}")


def _conclude(
    plan: ImportPlan, chosen: Sequence[ClientFile], edit: FileEdit, paths: Paths, *, is_written: bool, is_refused: bool
) -> None:
    if not edit.has_changed:
        if chosen:
            rest = ", except those that you removed" if any(each.outcome == "removed" for each in plan.servers) else ""
            all_there = f"{edit.path} already has all of these servers{rest}"
            note(all_there if plan.servers else "there is nothing to import")
        return
    if not is_written:
        if is_refused:
            note("nothing was written")
        return
    note_written(edit.path, edit.backup)
    if plan.values:
        note(f"wrote {counted(len(plan.values), 'value')} to {paths.secrets_file}, which only you can read")
    clients = dict.fromkeys(
        server.file.client.name if not server.file.is_copy else "CLIENT"
        for server in plan.servers
        if server.outcome != "gateway" and server.file.client is not REMOVED
    )
    for name in clients:
        note(f"next: pml connect {name}")
    if clients:
        note("all clients that are connected share one gateway and its servers: pml docs machine")


def _start(definition: dict[str, object] | None) -> str:
    return masked_start(UpstreamDefinition.model_validate(definition))


def _report(
    plan: ImportPlan,
    present: Sequence[ClientFile],
    left: Sequence[ClientFile],
    edit: FileEdit,
    paths: Paths,
    *,
    is_written: bool,
) -> dict[str, object]:
    return {
        "files": [
            {
                "client": None if file.is_copy and file.problem else file.client.name,
                "scope": None if file.is_copy else file.scope,
                "file": str(file.path),
                "servers": len(file.entries),
                "problem": file.problem or None,
                "imported": file not in left and not file.problem,
            }
            for file in present
        ],
        **plan_report(plan, edit, paths, is_written=is_written),
    }


def plan_report(plan: ImportPlan, edit: FileEdit, paths: Paths, *, is_written: bool) -> dict[str, object]:
    """Return the planned or added servers of an import, for `--json`."""
    return {
        "servers": [
            {
                "entry": server.entry_name,
                "client": server.file.client.name,
                "scope": server.file.scope,
                "outcome": server.outcome,
                "name": server.name or None,
                "starts": _start(server.definition) if server.outcome == "added" else None,
                "notes": server.notes,
                "problems": server.problems,
            }
            for server in plan.servers
        ],
        "secrets": [
            {"variable": item.variable, "used_by": item.used_by, "stored": item.is_stored} for item in plan.secrets
        ],
        "missing": [{"variable": item.variable, "used_by": item.used_by, "about": item.about} for item in plan.missing],
        "config": str(edit.path),
        "secrets_file": str(paths.secrets_file) if plan.values else None,
        "backup": str(edit.backup) if edit.backup else None,
        "changed": edit.has_changed,
        "written": is_written,
        "diff": edit.diff,
    }
