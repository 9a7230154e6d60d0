"""`pml up`, `pml down` and `pml restart`: the one gateway of this machine, whose clients share it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from pml_gateway import __version__
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import fail, messages, note, print_json, say, warn
from pml_gateway.config.settings import HttpSettings
from pml_gateway.errors import ConfigurationError, GatewayError, innermost
from pml_gateway.files import lock_file
from pml_gateway.local.commands import START_SECONDS, StuckGatewayError, ask, kill, tidy, wait_for_end
from pml_gateway.local.endpoint import POLL_SECONDS, Endpoint, UnsupportedSystemError, drop_lock, remove
from pml_gateway.local.entry import gateway_command
from pml_gateway.local.server import serve
from pml_gateway.local.starting import FailedStartError, reach
from pml_gateway.owner.operations import DOWN, EXPECT, HTTP, KEEP, RESTART, START, STATUS, OfProcess, ResultT
from pml_gateway.owner.results import Ended
from pml_gateway.paths import Paths
from pml_gateway.service.manager import manager_here, run
from pml_gateway.text import counted, span
from pml_gateway.types import JsonObject
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.reports.status import ProcessStatus

ANSWER_SECONDS = 5.0
LISTEN_SECONDS = 25.0
"""The gateway gives up after 20."""

DRAIN_SECONDS = 60.0
"""Time limit in seconds for running calls."""

END_SECONDS = 15.0
"""Time limit in seconds for servers to end after the last call."""

HttpOption = Annotated[
    bool, typer.Option("--http", help="It also listens, where http.host and http.port say; --host, --port.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Port; 0 takes a free one. [default: 8765]", min=0, max=65535)
]


@dataclass(frozen=True, slots=True)
class MachineGateway:
    """The gateway of this machine, as a command reaches it."""

    command: Command
    endpoint: Endpoint

    @classmethod
    def of(cls, command: Command) -> MachineGateway:
        """Return the gateway for a command, or end the process with the reason why there can be none."""
        try:
            return cls(command, endpoint_of(command))
        except GatewayError as error:
            fail(error, as_json=command.as_json)

    def close_to_others(self) -> None:
        """See that nobody else has come near it, as clients do."""
        if closed := self.endpoint.close_to_others():
            warn(closed)

    def start(self, *, stays: bool = True) -> bool:
        """Have it run, until it is told to end if it `stays`; return True if it was started for that.

        Raises:
            GatewayError: it cannot be started, or does not answer.
        """
        before = ask(self.endpoint, STATUS, ANSWER_SECONDS)
        if self.endpoint.was_killed:
            note("the gateway that was started before was killed; this one takes its place")
            if not stays:
                # Where that one listened counts no longer.
                remove(self.endpoint.up_request)
        program = gateway_command(str(self.command.paths.home), self.command.identity)
        try:
            reach(self.endpoint, program, time.monotonic() + START_SECONDS).close()
        except FailedStartError as error:
            raise GatewayError(error.message, hint=error.hint) from error
        except OSError as error:
            raise GatewayError(f"no gateway can be started: {error}") from error
        # It listens before it has imported what it answers with.
        if self.ask(STATUS, seconds=START_SECONDS)["started_by"] == "client" and stays:
            self.ask(KEEP)
        return before is None

    def ask(
        self,
        operation: OfProcess[ResultT],
        arguments: Mapping[str, object] = MappingProxyType({}),
        seconds: float = ANSWER_SECONDS,
    ) -> ResultT:
        """Return the answer of one that runs.

        Raises:
            GatewayError: it does not answer, or has ended since.
        """
        answer = ask(self.endpoint, operation, seconds, arguments)
        if answer is None:
            raise GatewayError("the gateway of this machine has just ended", hint=self.endpoint.where_logged)
        return answer

    def listen(self, http: Mapping[str, object]) -> None:
        """Have it listen, for its owner.

        Raises:
            GatewayError: it cannot, or does elsewhere.
        """
        self.ask(HTTP, http, LISTEN_SECONDS)

    def status_of_service(self) -> ProcessStatus:
        """Return the status of the gateway that the service starts, once it listens.

        Raises:
            GatewayError: it does not listen in time.
        """
        until = time.monotonic() + START_SECONDS
        while True:
            status = ask(self.endpoint, STATUS, ANSWER_SECONDS)
            # A client may have another one until then.
            if status is not None and status["started_by"] == "service":
                return status
            if time.monotonic() >= until:
                raise GatewayError(
                    f"no gateway of the service listens after {START_SECONDS:g} s",
                    hint=f"look at {manager_here(os.environ).log}",
                )
            time.sleep(POLL_SECONDS)

    def end_or_fail(self) -> None:
        """Have it end; what keeps it from that ends the process."""
        try:
            self.end(DOWN)
        except GatewayError as error:
            fail(error, as_json=self.command.as_json)

    def end(self, operation: OfProcess[Ended]) -> Ended | None:
        """Have it end once its calls are done, and wait for that; None where none runs.

        Raises:
            StuckGatewayError: it does not answer, or does not end.
            GatewayError: it cannot be reached.
        """
        with self.endpoint.watch() as gateway, messages().status("") as shown:

            def tell(left: float) -> None:
                # The last seconds are for its answer.
                shown.update(f"waiting for running calls, {max(0, left - ANSWER_SECONDS):.0f} s at most")

            answer = ask(self.endpoint, operation, DRAIN_SECONDS + ANSWER_SECONDS, {"seconds": DRAIN_SECONDS}, tell)
            if answer is not None and not wait_for_end(gateway, END_SECONDS):
                raise StuckGatewayError(self.endpoint, gateway.process or 0, f"has not ended in {END_SECONDS:g} s")
        return answer


StartOption = Annotated[
    bool | None,
    typer.Option(
        "--start/--no-start", help="Start the gateway now, so that the first session finds its tools. [default: ask]"
    ),
]
FIRST_LISTS_SECONDS = 20.0
"""Seconds to wait for servers, most of which start within a few; installations continue on their own."""


def start_now(command: Command, wanted: bool | None, *, may_ask: bool) -> None:
    """Start the gateway that clients will share and say how its servers are, if that is `wanted` or the person agrees.

    One that runs is left alone; where nobody can be asked, it is said how to start it.
    """
    if wanted is False or not command.load().settings.local.attach:
        return
    try:
        endpoint = endpoint_of(command)
    except ConfigurationError as error:
        note(error.message)
        return
    if endpoint.living() is not None:
        return
    if wanted is None and not may_ask:
        note("pml up starts the gateway now, so that the first session finds its tools")
        return
    if wanted is None and not typer.confirm(
        "Start the gateway now, so that the first session finds its tools?", default=True
    ):
        return
    with messages().status("starting the gateway and its servers"):
        found = command.ask(START, {"seconds": FIRST_LISTS_SECONDS})
    note(f"the gateway runs; ready: {', '.join(found['ready']) or 'none'}")
    if found["starting"]:
        note(f"still starting: {', '.join(found['starting'])}")
    for server, reason in found["failed"].items():
        warn(f"{server}: {reason}")


def endpoint_of(command: Command) -> Endpoint:
    """Return the endpoint of the gateway for this home and configuration.

    Raises:
        ConfigurationError: clients cannot share a gateway here.
    """
    try:
        return Endpoint.of(command.paths.home, command.identity)
    except UnsupportedSystemError as error:
        raise ConfigurationError(str(error)) from None


def up(
    http: HttpOption = False,
    host: HostOption = None,
    port: PortOption = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Serve in this process; one that runs makes room once its calls end.")
    ] = False,
    by_service: Annotated[bool, typer.Option("--by-service", hidden=True)] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the gateway of this machine, which runs until `pml down`; with --http it also listens.

    Clients that start `pml serve` use it. Without this command the first of them starts it, and it ends once none has
    been there for local.idle_minutes.

    Example: pml up --http
    """
    if not http and (host is not None or port is not None):
        raise typer.BadParameter("needs --http", param_hint="--host/--port")
    command = Command(config, as_json=as_json)
    machine = MachineGateway.of(command)
    try:
        settings = command.load().settings
        machine.close_to_others()
        owned = {"host": host, "port": port, "owner": _owner(command)} if http else None
        if foreground:
            if http:
                _check_port(machine, settings.http, host, port)
            raise typer.Exit(_serve_here(machine, owned, started_by="service" if by_service else "up"))
        with messages().status("starting the gateway"):
            # One that cannot listen is not kept.
            is_new = machine.start(stays=not http)
        if owned is not None:
            _listen(machine, owned, is_new=is_new)
        status = machine.ask(STATUS)
    except GatewayError as error:
        fail(error, as_json=as_json)
    _tell(machine, status, is_new=is_new, now_listens=http)


def _listen(machine: MachineGateway, owned: Mapping[str, object], *, is_new: bool) -> None:
    try:
        machine.listen(owned)
    except GatewayError:
        if is_new:
            machine.end(DOWN)
        raise


def _check_port(machine: MachineGateway, settings: HttpSettings, host: str | None, port: int | None) -> None:
    """Find out that the port is free, before a gateway ends for another one; its own is free then.

    Raises:
        GatewayError: somebody else has it.
    """
    # The server stack takes 0.7 s to import, which other ways of `pml up` never need.
    from pml_gateway.serve.http.binding import check_port

    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    wanted = settings.model_copy(update=given)
    url = (ask(machine.endpoint, STATUS, ANSWER_SECONDS) or {}).get("url")
    if url is None or urlsplit(url).port != wanted.port:
        check_port(wanted)


def _owner(command: Command) -> JsonObject:
    """Return the settings and variables of this shell, for serving over HTTP."""
    here = WorkingDirectory.here()
    return {
        "attach": 1,
        "version": __version__,
        "secret": secrets.token_urlsafe(32),
        "pid": os.getpid(),
        "folder": str(here.folder),
        "environ": dict(here.environ),
        "options": {"config": command.identity},
    }


def _serve_here(machine: MachineGateway, http: Mapping[str, object] | None, *, started_by: str) -> int:
    """Be the gateway, in the place of one that runs; the exit code.

    Raises:
        GatewayError: the one that runs does not end, or nobody can listen where it is to.
    """
    machine.endpoint.prepare()
    # As long as this is held, clients wait for the next gateway and start none of their own.
    lock = lock_file(machine.endpoint.start_lock)
    try:
        machine.end(RESTART)
        command = machine.command
        # What it reads for itself is in the same file.
        paths = Paths.from_environ({**os.environ, "PML_CONFIG": command.identity})
        return serve(paths, command.config_file, started_by, http)
    except BaseExceptionGroup as raised:
        error = innermost(raised)
        if not isinstance(error, GatewayError):
            raise
        raise error from None
    finally:
        if lock is not None:
            drop_lock(machine.endpoint.start_lock, lock)


def _tell(machine: MachineGateway, status: ProcessStatus, *, is_new: bool, now_listens: bool = False) -> None:
    is_service = status["started_by"] == "service"
    log = manager_here(os.environ).log if is_service else machine.endpoint.log
    if machine.command.as_json:
        told = {key: status.get(key) for key in ("pid", "version", "url")}
        print_json({**told, "log": log, "started": is_new})
        return
    where = f", {url}" if (url := status.get("url")) else ""
    if is_new:
        say(f"the gateway of this machine runs: process {status['pid']}{where}")
    else:
        since = span(status["age_seconds"])
        news = [f"now listens at {url}"] if now_listens else []
        news += [] if is_service else ["stays until pml down"]
        running = f"process {status['pid']}{'' if now_listens else where}"
        change = f"; it {' and '.join(news)}" if news else ""
        say(f"the gateway of this machine runs already, for {since}: {running}{change}")
    note(f"its log: {log}")


def down(
    config: ConfigOption = None,
    all_files: Annotated[bool, typer.Option("--all", help="Also those of other configuration files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End the gateway of this machine and its servers; running calls get 60 seconds to finish.

    Each configuration file has a gateway of its own: --config FILE ends that of another file, --all every one.

    Clients stay: the next message of one of them starts another one, also while calls of others still run in this one.
    One that hangs is killed after that time.

    Example: pml down
    """
    command = Command(config, as_json=as_json)
    machine = MachineGateway.of(command)
    machine.close_to_others()
    others = _of_other_files(machine)
    if all_files:
        for file in others:
            MachineGateway.of(Command(Path(file), as_json=as_json)).end_or_fail()
    elif not as_json:
        for file, process in others.items():
            note(f"process {process} serves {file}; pml down --config {file} ends it")
    killed: int | None = None
    with machine.endpoint.watch() as gateway:
        try:
            answer = machine.end(DOWN)
        except StuckGatewayError as error:
            if not kill(machine.endpoint, gateway):
                fail(GatewayError(f"{error.message}, nor can it be killed"), as_json=as_json)
            killed, answer = gateway.process, {"unfinished": 0, "http": None}
        except GatewayError as error:
            fail(error, as_json=as_json)
    if answer is None and Path(machine.endpoint.up_request).exists():
        tidy(machine.endpoint)
    unfinished = answer.get("unfinished", 0) if answer else 0
    if as_json:
        print_json({"ended": answer is not None, "unfinished": unfinished, "killed": killed})
    elif killed is not None:
        warn(f"process {killed} did not end by itself and was killed, with its servers; clients start another gateway")
    elif answer is None:
        note("no gateway of this machine runs")
    else:
        say("the gateway of this machine has ended")
        _tell_unfinished(unfinished)
        if next_one := machine.endpoint.living():
            note(f"a client has another one by now: process {next_one}")


def _of_other_files(machine: MachineGateway) -> dict[str, int | None]:
    """Return the process of every gateway that clients share and that is of another configuration file of this home."""
    from pml_gateway.owner.sockets import ask_gateways

    command, own = machine.command, machine.endpoint.socket
    answers = command.run(lambda: ask_gateways(command.paths, STATUS, ANSWER_SECONDS, without=own))
    return {
        report["config"]: report["pid"]
        for report in answers.results
        if report["transport"] == "machine" and report["config"] != command.identity
    }


def _tell_unfinished(unfinished: int) -> None:
    if unfinished:
        warn(f"{counted(unfinished, 'client')} had calls that did not finish in {DRAIN_SECONDS:g} s; they were cut off")


def _tell_none(machine: MachineGateway) -> None:
    if machine.command.as_json:
        print_json({"pid": None, "version": None, "url": None, "log": machine.endpoint.log, "started": False})
    else:
        note("no gateway of this machine runs; the next client starts one, or: pml up")


def restart(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """End the gateway of this machine and start it again as it was started; clients stay connected.

    It listens where it did, with the folder and variables of the shell that had it listen. One of `pml up --foreground`
    goes on in the background, as after `pml up`. If none runs, none is started.

    Example: pml restart
    """
    command = Command(config, as_json=as_json)
    machine = MachineGateway.of(command)
    try:
        # A configuration that cannot be read would leave nothing running.
        command.load()
        machine.close_to_others()
        before = ask(machine.endpoint, STATUS, ANSWER_SECONDS)
        if before is None:
            _tell_none(machine)
            return
        if before["started_by"] == "service":
            # Whoever ended it here would have it stay away: its exit code says that all is well.
            run(*manager_here(os.environ).restarts)
            ended: Ended | None = None
            status = machine.status_of_service()
        else:
            ended = machine.end(RESTART)
            stays = before["started_by"] != "client"
            machine.start(stays=stays)
            if not stays:
                machine.ask(EXPECT)
            if ended is not None and (http := ended.get("http")):
                machine.listen(http)
            status = machine.ask(STATUS)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if not as_json:
        _tell_unfinished(ended.get("unfinished", 0) if ended else 0)
    _tell(machine, status, is_new=True)
