"""`pml secrets`: the values that pml keeps for servers, by name and user; no command shows a value."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from pml_gateway.cli.completion import stored_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import JsonOption
from pml_gateway.cli.output import note, print_json, print_table, warn
from pml_gateway.config.advice import overridden, variable_users
from pml_gateway.config.findings import SettingsCase, run_checks
from pml_gateway.config.load import load_settings
from pml_gateway.errors import UsageError
from pml_gateway.paths import Paths
from pml_gateway.secrets.env_file import store_variables, stored_variables
from pml_gateway.serve.signals import run_until_signalled
from pml_gateway.text import counted, suggestion
from pml_gateway.working_directory import WorkingDirectory

secrets_app = typer.Typer(name="secrets", no_args_is_help=True)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@secrets_app.callback()
def secrets() -> None:
    """List, store and remove the values that ${env:NAME} in your configuration stands for.

    They are in ~/.pml/secrets.env, which only you can read, and win over variables of the environment.

    Example: pml secrets list
    """


@secrets_app.command("list")
def list_secrets(as_json: JsonOption = False) -> None:
    """List the stored values by name, with the settings that use each. The values are not shown.

    Example: pml secrets list
    """
    settings, stored = load_settings().settings, stored_variables()
    users, case = variable_users(settings), SettingsCase(settings, WorkingDirectory.here().environ)
    others = {finding.subject for finding in run_checks([overridden], case)}
    if as_json:
        rows = [{"name": name, "used_by": users.get(name, []), "overrides": name in others} for name in sorted(stored)]
        print_json({"file": str(Paths.from_environ().secrets_file), "secrets": rows})
        return
    if not stored:
        note("no values are stored; pml add and pml init store those that servers need")
        return
    print_table(("NAME", "USED BY"), [(name, ", ".join(users.get(name, ["nothing"]))) for name in sorted(stored)])
    if unused := sorted(stored.keys() - users.keys()):
        note(f"nothing in this configuration uses {', '.join(unused)}: pml secrets remove --unused")
    for name in sorted(others & stored.keys()):
        note(f"the environment has another value of {name}; the stored one is used")


@secrets_app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The variable.", autocompletion=stored_names)],
    value_here: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    as_json: JsonOption = False,
) -> None:
    """Store a value, in the place of the one before. It is asked for, or read from standard input.

    It is no argument, because other programs and the history of your shell see those. Servers that use it are started
    again by running gateways.

    Example: pml secrets set GITHUB_TOKEN
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a variable", hint="use letters, digits and _, as in GITHUB_TOKEN")
    if value_here:
        raise UsageError("the value is no argument, which other programs see", hint=f"pml secrets set {name}")
    users = variable_users(load_settings().settings).get(name, [])
    value = _read_value(name)
    if not value.strip() or "\0" in value:
        raise UsageError(f"no value for {name} was given", hint=f"printf %s VALUE | pml secrets set {name}")
    unused = f"which nothing uses yet: write ${{env:{name}}} where it belongs"
    stored = "" if as_json else f"stored {name}, {'used by ' + ', '.join(users) if users else unused}"
    _write({name: value}, stored)
    if as_json:
        print_json({"name": name, "used_by": users, "written": True})


@secrets_app.command("remove")
def remove_secrets(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="The variables.", autocompletion=stored_names)
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="All that nothing in this configuration uses.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove stored values. If settings still use one, they are named first.

    Example: pml secrets remove OLD_TOKEN
    """
    stored, users = stored_variables(), variable_users(load_settings().settings)
    chosen = sorted(stored.keys() - users.keys()) if unused else list(dict.fromkeys(names or ()))
    if bool(names) is unused:
        raise UsageError("it is not clear which to remove", hint="pml secrets remove NAME..., or --unused")
    for name in chosen:
        if name not in stored:
            raise UsageError(f"no value {name!r} is stored{suggestion(name, stored)}", hint="pml secrets list")
    used = {name: users[name] for name in chosen if name in users}
    if not as_json:
        for name, keys in used.items():
            warn(f"{name} is still used by {', '.join(keys)}")
    question = f"Remove {', '.join(chosen)}?"
    asked = Consent(yes, as_json=as_json)
    is_wanted = bool(chosen) and asked.agrees(question, default=not used)
    if is_wanted:
        _write(dict.fromkeys(chosen), "" if as_json else f"removed {', '.join(chosen)}")
    if as_json:
        print_json({"removed": chosen if is_wanted else [], "still_used_by": used, "written": is_wanted})
    elif not chosen:
        note("every stored value is used")
    elif not is_wanted and asked.is_interactive:
        note("nothing was removed")
    if chosen:
        asked.refuse_if_impossible(done="removed", remedy="--yes to remove it")


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"Value of {name}", hide_input=True))
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")


def _write(values: Mapping[str, str | None], done: str) -> None:
    """Store values, tell running gateways, and say what was `done`, unless that is empty."""
    # The server stack takes 0.7 s to import, which a list never needs.
    from pml_gateway.setup.first_look import tell_gateways

    paths = Paths.from_environ()
    store_variables(paths.secrets_file, values, values)
    if done:
        note(done)
    following = run_until_signalled(lambda: tell_gateways(paths))
    if following.pids and done:
        note(f"{counted(len(following.pids), 'running gateway follows', 'running gateways follow')}")
