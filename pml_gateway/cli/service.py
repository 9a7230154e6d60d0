"""`pml service`: the gateway of this machine, started at login."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import note, print_json, say
from pml_gateway.service.manager import Manager, manager_here, run

service_app = typer.Typer(name="service", no_args_is_help=True)


@service_app.callback()
def service() -> None:
    """Have the gateway of this machine start when you log in: by systemd on Linux, by launchd on macOS.

    Example: pml service status
    """


@service_app.command("install")
def install_service(
    http: Annotated[bool, typer.Option("--http", help="It also listens, at http.host and http.port.")] = False,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the service, change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the service and start it. Run it again after you have moved or upgraded pml.

    It keeps PATH, PML_HOME and PML_CONFIG of this shell, and no other variable.

    Example: pml service install --dry-run
    """
    options = (["--http"] if http else []) + ([f"--config={config.expanduser().absolute()}"] if config else [])
    Command(config, as_json=as_json).load()  # what cannot be read would fail at every login
    manager = manager_here(os.environ, *options)
    manager.installed()
    if not dry_run:
        manager.install()
    _tell(manager, manager.text, "nothing was written" if dry_run else "written and started", as_json=as_json)


@service_app.command("status")
def service_status(as_json: JsonOption = False) -> None:
    """Show the installed service, and what systemd or launchd says of it.

    Example: pml service status
    """
    manager = manager_here(os.environ)
    text = manager.installed()
    state = run(*manager.shows) if text is not None else "not installed: pml service install"
    _tell(manager, text, state, as_json=as_json)


@service_app.command("uninstall")
def uninstall_service(as_json: JsonOption = False) -> None:
    """Stop the service and remove it. Clients go on: the next one that needs a gateway starts it.

    Example: pml service uninstall
    """
    manager = manager_here(os.environ)
    is_there = manager.installed() is not None
    if is_there:
        manager.uninstall()
    _tell(manager, None, "stopped and removed" if is_there else "there is no service", as_json=as_json)


def _tell(manager: Manager, text: str | None, said: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(manager.file), "text": text, "said": said})
    else:
        say(f"{manager.file}\n{text or ''}")
        note(said)
