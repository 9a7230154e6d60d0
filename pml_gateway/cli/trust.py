"""`pml trust`: what is held back for its owner to look at, and what a project's `.pml.yaml` may do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pml_gateway.cli.output import fail, note, print_json, print_table, say, warn
from pml_gateway.config.document import parse, read_bytes
from pml_gateway.config.layers import dotted, leaves
from pml_gateway.config.load import load_settings
from pml_gateway.config.masked import masked_start
from pml_gateway.config.problems import shaped
from pml_gateway.config.project import find_project_file
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import PROJECT_NAME, Paths


@dataclass(frozen=True, slots=True)
class Approval:
    """What a project file may do from now on; `starts` has the command or URL of each of its servers."""

    sha256: str
    keys: tuple[str, ...]
    starts: tuple[str, ...]


def approve(file: Path, store: TrustStore, environ: Mapping[str, str] = os.environ) -> Approval:
    """Pin `file` as it is now.

    Raises:
        ConfigurationError: the file is broken, or the configuration would not load with it; it is not trusted then.
    """
    content = read_bytes(file)
    values = shaped(parse(content, "project", file)).values
    entry = store.trust(file, content)
    try:
        settings = load_settings(project_dir=file.parent, environ=environ).settings
    except ConfigurationError:
        store.revoke(file)
        raise
    names = values.get("servers", {})
    return Approval(
        entry.sha256,
        tuple(dotted(path) for path, _ in leaves(values)),
        tuple(f"{name}: {masked_start(settings.servers[name])}" for name in names),
    )


_OLD_OPTIONS = frozenset({"--revoke", "--list"})


class TrustGroup(TyperGroup):
    """The group; a folder instead of a command is a project's, as before there were commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with the command that the old form means in front."""
        return super().parse_args(ctx, ["project", *args] if self._means_a_project(args) else args)

    def _means_a_project(self, args: list[str]) -> bool:
        first = next((word for word in args if not word.startswith("-")), None)
        if first in self.commands:
            return False
        return not _OLD_OPTIONS.isdisjoint(args) or (first is not None and Path(first).is_dir())


trust_app = typer.Typer(name="trust", cls=TrustGroup, no_args_is_help=False)


@trust_app.callback(invoke_without_command=True)
def trust(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what is held back until you have looked at it, and whether this project's .pml.yaml is trusted.

    A folder instead of a command approves its project file: `pml trust DIR` is `pml trust project DIR`.

    Example: pml trust
    """
    if context.invoked_subcommand is not None:
        return
    store, file = TrustStore(Paths.from_environ().trust_file), find_project_file(Path.cwd())
    try:
        state = "" if file is None else store.state(file) if file in store.entries() else "not trusted"
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({"project": None if file is None else {"file": str(file), "state": state}})
    elif file is None:
        note(f"no {PROJECT_NAME} here")
    else:
        say(f"{file}: {state}")


@trust_app.command()
def project(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Project; default the current one.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the approval.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List what is approved.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a project's .pml.yaml set more than its intent and a narrower exposure.

    The approval is for the file as it is now: after any change it is not trusted again. Until then its servers,
    clients and lists are ignored.

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
            _trust(store, directory or Path.cwd(), as_json=as_json)
    except ConfigurationError as error:
        fail(error, as_json=as_json)


def _trust(store: TrustStore, directory: Path, *, as_json: bool) -> None:
    file = find_project_file(directory)
    if file is None:
        raise ConfigurationError(f"no {PROJECT_NAME} in {directory.absolute()}", hint="name the project's directory")
    approval = approve(file, store)
    if as_json:
        print_json({"trusted": str(file), "sha256": approval.sha256, "sets": approval.keys, "starts": approval.starts})
        return
    _show(approval)
    say(f"trusted: {file}")
    note(f"sha256 {approval.sha256}; a changed file has to be trusted again")


def _show(approval: Approval) -> None:
    for key in approval.keys:
        note(f"  sets    {key}")
    for start in approval.starts:
        warn(f"a server of this file: {start}")


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
