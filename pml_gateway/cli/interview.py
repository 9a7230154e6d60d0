"""The questions of the wizard: each answered by a person, or by its default where nobody is asked."""

from __future__ import annotations

from pathlib import Path

import typer

from pml_gateway.cli.output import note, warn
from pml_gateway.config.clients.discover import client_files, known_client
from pml_gateway.config.clients.known import CLIENT_NAMES
from pml_gateway.config.clients.places import Surroundings
from pml_gateway.config.problems import did_you_mean
from pml_gateway.errors import ConfigurationError
from pml_gateway.exposure.recommend import Priority

PLAIN_FILE = "mcp-json"
"""Not a client: the name of the file that several of them read."""


def asked_number(question: str, default: int, *, is_asking: bool) -> int:
    """A number of at least one."""
    number = max(default, 1)
    while is_asking:
        number = typer.prompt(question, default=number, type=int, err=True)
        if number >= 1:
            break
        warn(f"{number} is less than 1")
        number = max(default, 1)
    return number


def asked_clients(*, is_asking: bool) -> list[str]:
    """The clients that have a file here, unless a person says otherwise."""
    files = client_files(Surroundings.here(Path.cwd()))
    found = list(dict.fromkeys(file.client.name for file in files if file.exists and file.client.name != PLAIN_FILE))
    if not is_asking:
        return found
    choices = ", ".join(name for name in CLIENT_NAMES if name != PLAIN_FILE)
    while True:
        text = typer.prompt(f"Which clients ({choices})?", default=", ".join(found) or "none", err=True)
        names = [name for name in text.replace(",", " ").split() if name != "none"]
        try:
            return [known_client(name).name for name in names]
        except ConfigurationError as error:
            warn(str(error))


def read_priority(text: str) -> Priority:
    """What matters, as it is typed.

    Raises:
        typer.BadParameter: it is none of the choices.
    """
    choices = [item.value for item in Priority]
    if text not in choices:
        near = did_you_mean(text, choices)
        raise typer.BadParameter(f"{text!r} is none of {', '.join(choices)}{near}", param_hint="--matters")
    return Priority(text)


def asked_priority(*, is_asking: bool) -> Priority:
    """What matters most; tokens unless a person says otherwise."""
    if not is_asking:
        return Priority.TOKENS
    note("tokens: the model reads as little as possible; accuracy: the right tool is listed, ready to call;")
    note("compatibility: clients and agents that never search find their tools listed")
    while True:
        text = typer.prompt("What matters most (tokens, accuracy, compatibility)?", default="tokens", err=True)
        try:
            return read_priority(text.strip().lower())
        except typer.BadParameter as error:
            warn(error.message)
