"""`pml service`: the gateway of this machine, started at login."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated

import typer

from pml_gateway.cli.consent import Asked, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, fail, note, print_diff, print_json, refuse_unasked, say, warn
from pml_gateway.errors import GatewayError
from pml_gateway.service.install import Installation, Manager, is_removable, manager_here, plan, remove, standing
from pml_gateway.service.program import Program, own_program
from pml_gateway.service.state import NoManagerError
from pml_gateway.types import JsonObject

service_app = typer.Typer(name="service", no_args_is_help=True)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, change nothing.")]


@service_app.callback()
def service() -> None:
    """Have the gateway of this machine start when you log in: by systemd on Linux, by launchd on macOS.

    Example: pml service status
    """


@service_app.command("install")
def install_service(
    http: Annotated[bool, typer.Option("--http", help="It also listens, where http.host and http.port say.")] = False,
    config: ConfigOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also where pml did not write the file there is.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the service after showing it, and start it. Run it again after you have moved or upgraded pml.

    It keeps PATH, PML_HOME and PML_CONFIG of this shell, and no other variable.

    Example: pml service install --dry-run
    """
    try:
        if not dry_run:
            # What no start can read would only fail at every login.
            Command(config, as_json=as_json).load()
        manager = manager_here(os.environ)
        change = plan(manager, _program(http=http, config=config), replace=replace)
        if not as_json:
            print_diff(change.diff)
        asked = Asked(yes, dry_run, as_json)
        is_unasked = change.has_changed and asked.is_impossible
        is_done = asked.agrees(f"Write {manager.file}?") if change.has_changed else not dry_run
        problem = None
        if is_done:
            change.write()
            problem = _start(manager, is_changed=change.has_changed)
    except GatewayError as error:
        fail(error, as_json=as_json)
    _tell_installed(change, is_done=is_done, is_unasked=is_unasked, problem=problem, as_json=as_json)
    if is_unasked:
        refuse_unasked(as_json=as_json)
    if problem is not None:
        raise typer.Exit(ExitCode.FAILED)


def _program(*, http: bool, config: Path | None) -> Program:
    options = (["--http"] if http else []) + ([f"--config={config.expanduser().absolute()}"] if config else [])
    return own_program(os.environ, *options)


def _start(manager: Manager, *, is_changed: bool) -> GatewayError | None:
    """Start what is written; what keeps it from starting is no reason to take the file away."""
    try:
        manager.start(is_changed=is_changed)
    except GatewayError as error:
        return error
    return None


def _tell_installed(
    change: Installation, *, is_done: bool, is_unasked: bool, problem: GatewayError | None, as_json: bool
) -> None:
    manager = change.manager
    if as_json:
        print_json(
            {
                "file": str(manager.file),
                "changed": change.has_changed,
                "written": is_done and change.has_changed,
                "started": is_done and problem is None,
                "problem": problem.message if problem else None,
                "diff": change.diff,
            }
        )
        return
    if not change.has_changed:
        note(f"{manager.file} says this already")
    elif is_done:
        note(f"wrote {manager.file}")
    elif not is_unasked:
        note("nothing was written")
    if problem is not None:
        warn(f"it was not started: {problem}")
        if isinstance(problem, NoManagerError):
            note(f"in a session of yours: {manager.by_hand}")
    elif is_done:
        note("it runs, and starts when you log in: pml service status")
        if more := manager.note(getpass.getuser()):
            note(more)


@service_app.command("status")
def service_status(as_json: JsonOption = False) -> None:
    """Say whether the service is installed, starts at login and runs, and whether it starts this installation.

    Example: pml service status
    """
    try:
        manager = manager_here(os.environ)
        found = standing(manager, own_program(os.environ))
    except GatewayError as error:
        fail(error, as_json=as_json)
    state = found.state
    if as_json:
        print_json(
            {
                "file": str(manager.file),
                "installed": found.is_installed,
                "enabled": state.is_enabled if state else None,
                "running": state.is_running if state else None,
                "pid": state.pid if state else None,
                "command": list(found.program.command) if found.program else None,
                "problem": found.problem or None,
                "remedy": found.remedy or None,
            }
        )
        return
    if not found.is_installed:
        say("the gateway does not start at login")
    elif state is None:
        say(f"installed: {manager.file}")
    else:
        runs = f"runs (pid {state.pid})" if state.pid else "runs" if state.is_running else "does not run"
        say(f"installed, {'starts' if state.is_enabled else 'does not start'} at login, {runs}: {manager.file}")
    if found.problem:
        warn(found.problem)
    if found.remedy:
        note(found.remedy)
    elif not found.is_installed:
        note("pml service install")


@service_app.command("uninstall")
def uninstall_service(dry_run: DryRunOption = False, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Stop the service and take it away, with every link and folder that was made for it.

    Clients go on: the next one that needs a gateway starts it.

    Example: pml service uninstall --yes
    """
    try:
        manager = manager_here(os.environ)
        is_there = is_removable(manager)
        asked = Asked(yes, dry_run, as_json)
        is_unasked = is_there and asked.is_impossible
        is_done = is_there and asked.agrees(f"Stop it and remove {manager.file}?")
        problem = _remove(manager) if is_done else None
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        answer: JsonObject = {"file": str(manager.file), "installed": is_there, "removed": is_done}
        print_json({**answer, "problem": problem.message if problem else None})
    elif is_done:
        note(f"removed {manager.file}")
        if problem is not None:
            warn(f"it could not be asked to stop: {problem}")
    elif not is_there:
        note("there is no service")
    elif dry_run:
        note(f"would stop it and remove {manager.file}")
    elif not is_unasked:
        note("nothing was removed")
    if is_unasked:
        refuse_unasked(as_json=as_json, done="removed", remedy="--yes to remove it, or with --dry-run to look only")


def _remove(manager: Manager) -> GatewayError | None:
    problem: GatewayError | None = None
    try:
        manager.stop()
    except NoManagerError:
        # Then it does not run either.
        pass
    except GatewayError as error:
        problem = error
    remove(manager)
    return problem
