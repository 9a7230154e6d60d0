"""`pml upstreams login` and `logout`: a person's consent at a server's authorization server, and its end."""

from __future__ import annotations

import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import messages, note, print_json, say
from pml_gateway.config.problems import did_you_mean
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import InvalidInputError, UsageError
from pml_gateway.telemetry import logs

if TYPE_CHECKING:
    from pml_gateway.config.servers import UpstreamDefinition
    from pml_gateway.types import JsonObject
    from pml_gateway.upstreams.callback import Callback

LOGIN_SECONDS = 300.0

ServerArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The server's name in `servers:`.", autocompletion=server_names)
]


def login(
    name: ServerArgument,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the address and take the answer.")
    ] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the person.")] = LOGIN_SECONDS,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Log in to a server that asks for it (OAuth). Running gateways use the login at once.

    Example: pml upstreams login linear
    """
    command = Command(config, as_json=as_json)
    report = command.run(lambda: _login(command, name, browser=browser, timeout=timeout))
    if as_json:
        print_json(report)
        return
    until = f" until {report['expires_at']}" if report["expires_at"] and not report["renews"] else ""
    say(f"logged in to {name}{until}", style="green")
    if report["scope"]:
        note(f"scope: {report['scope']}")
    if report["gateways"]:
        note(f"running gateways told: {report['gateways']}")


def logout(name: ServerArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Forget the login to a server, and ask its authorization server to take the tokens back.

    Example: pml upstreams logout linear
    """
    command = Command(config, as_json=as_json)
    report = command.run(lambda: _logout(command, name))
    if as_json:
        print_json(report)
    elif report["was_logged_in"]:
        say(f"logged out of {name}" + (", and its tokens were revoked" if report["revoked"] else ""))
    else:
        say(f"nobody was logged in to {name}")


async def _login(command: Command, name: str, *, browser: bool, timeout: float) -> JsonObject:
    # The OAuth client takes 0.3 s to import, which `pml --help` never needs.
    from pml_gateway.upstreams.authorization import moment
    from pml_gateway.upstreams.login import log_in
    from pml_gateway.upstreams.tokens import TokenStore

    definition = _definition(command, name)

    async def show(url: str, callback: Callback) -> None:
        is_open = browser and await anyio.to_thread.run_sync(webbrowser.open, url)
        note("log in with the browser that opens, or at this address:" if is_open else "log in at this address:")
        messages().print(url, soft_wrap=True, markup=False)
        if not is_open:
            note(f"then wait here, or paste the address you are sent back to ({callback.redirect_uri}?...)")
            _read_answers(callback)

    stored = await log_in(name, definition, TokenStore(command.paths.auth_dir), show, timeout=timeout)
    return {
        "server": name,
        "state": "logged_in",
        "expires_at": moment(stored.expires_at),
        "renews": stored.is_renewable,
        "scope": stored.scope,
        "gateways": await _tell_gateways(command, name),
    }


async def _logout(command: Command, name: str) -> JsonObject:
    from pml_gateway.upstreams.login import log_out
    from pml_gateway.upstreams.tokens import TokenStore

    definition = _definition(command, name)
    was_there, revoked = await log_out(name, definition, TokenStore(command.paths.auth_dir))
    gateways = await _tell_gateways(command, name) if was_there else 0
    return {"server": name, "was_logged_in": was_there, "revoked": revoked, "gateways": gateways}


def _definition(command: Command, name: str) -> UpstreamDefinition:
    logs.configure(LogSettings(level="error"))
    loaded = command.load()
    servers = loaded.settings.servers
    if name not in servers:
        raise UsageError(
            f"no server {name!r} is configured{did_you_mean(name, servers)}", hint=f"known are {', '.join(servers)}"
        )
    return servers[name]


async def _tell_gateways(command: Command, name: str) -> int:
    from pml_gateway.server.control import ask_gateways

    answers = await ask_gateways(command.paths, "reconnect", timeout=5, server=name)
    return sum("error" not in answer for answer in answers)


def _read_answers(callback: Callback) -> None:
    """Take pasted addresses until one is an answer. A daemon thread, because nothing ends a read of a terminal."""
    loop = anyio.lowlevel.current_token()

    def read() -> None:
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                anyio.from_thread.run_sync(callback.take, line, token=loop)
            except InvalidInputError as error:
                note(f"{error.message}; {error.hint}")
                continue
            except RuntimeError:
                # The login ended meanwhile.
                return
            return

    threading.Thread(target=read, daemon=True, name="answers").start()
