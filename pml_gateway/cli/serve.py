"""`pml serve`: the gateway over stdio or HTTP."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from pml_gateway import log
from pml_gateway.cli.completion import set_names
from pml_gateway.cli.context import Command, ConfigOption, ModeOption, PresetOption
from pml_gateway.cli.output import note
from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.sets import VARIABLE, check_sets, named_sets
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import GatewayError
from pml_gateway.gc_pause import collection_put_off
from pml_gateway.local.bridge import ServeAloneError
from pml_gateway.local.entry import serve_as_bridge
from pml_gateway.storage.places import close_to_others, warn_unwritable_places
from pml_gateway.telemetry import logs
from pml_gateway.text import counted
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.config.settings import HttpSettings
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.serve.runtime import Runtime

ENDPOINT = "/mcp"
KEY_VARIABLE = "PML_STORAGE_KEY"

MAX_WORKERS = 64
"""More than cores are of no use."""


def serve(
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP instead of stdio.")] = False,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port; 0 takes a free one. [default: 8765]", min=0, max=65535)
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            help="Processes that share the port and, without storage.url, a Redis server of their own.",
            min=1,
            max=MAX_WORKERS,
        ),
    ] = 1,
    worker: Annotated[str | None, typer.Option("--worker", hidden=True)] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="A gateway of its own for this client, instead of the machine's.")
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Over stdio: see only what this set or role gives; several together, or by PML_SET.",
            autocompletion=set_names,
        ),
    ] = None,
    config: ConfigOption = None,
    mode: ModeOption = None,
    preset: PresetOption = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error. [default: info]")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help="auto, text or json (one object a line). [default: auto]")
    ] = None,
) -> None:
    """Serve all configured MCP servers as one endpoint, over stdio or HTTP.

    Over stdio, all clients on this machine share one gateway process, which the first of them starts: pml docs machine.

    Example: pml serve --http --port 8765 --mode hybrid
    """
    if not http and (host is not None or port is not None):
        raise typer.BadParameter("needs --http", param_hint="--host/--port")
    if not http and workers > 1:
        raise typer.BadParameter("needs --http: over stdio all clients share one process", param_hint="--workers")
    if http and alone:
        raise typer.BadParameter("is for stdio: over HTTP every gateway is one of its own", param_hint="--alone")
    given = ",".join(sets) if sets else None
    names = named_sets(given, WorkingDirectory.here().environ)
    if http and names:
        raise typer.BadParameter(
            "is for stdio: over HTTP, sets belong to keys (clients.<name>.sets) or to all (gateway.sets)",
            param_hint=f"--set/{VARIABLE}",
        )
    overrides: dict[str, Any] = _log_options(log_level, log_format)
    if host is not None:
        overrides["http.host"] = host
    if port is not None:
        overrides["http.port"] = port
    command = Command(config, mode, preset, overrides=overrides)
    if not http and not alone and _wants_to_attach(command):
        bridged = {
            "config": str(config) if config is not None else None,
            "mode": mode,
            "preset": preset,
            "set": given,
            "log_level": log_level,
            "log_format": log_format,
        }
        with suppress(ServeAloneError):
            # As the command that is a bridge from its first moment.
            os._exit(serve_as_bridge(bridged))
    if workers > 1:
        options: dict[str, object] = {
            "--config": config,
            "--host": host,
            "--mode": mode,
            "--preset": preset,
            "--log-level": log_level,
            "--log-format": log_format,
        }
        given_on = [text for name, value in options.items() if value is not None for text in (name, str(value))]
        command.run(lambda: _serve_by_workers(command, workers, given_on))
        return
    command.run(lambda: _serve(command, names, over_http=http, worker=worker))


def _wants_to_attach(command: Command) -> bool:
    """Return True if clients share one process; of a configuration that cannot be read, the gateway tells."""
    try:
        return command.load().settings.local.attach
    except GatewayError:
        return False


def _log_options(level: str | None, format_: str | None) -> dict[str, Any]:
    given = {"level": level, "format": format_}
    try:
        chosen = LogSettings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        use = {"level": "debug, info, warning or error", "format": "auto, text or json"}[name]
        raise typer.BadParameter(f"use {use}", param_hint=f"--log-{name}") from None
    # Until the configuration is read, which has the rest to say.
    logs.configure(chosen)
    return {f"log.{name}": getattr(chosen, name) for name in chosen.model_fields_set}


async def _serve_by_workers(command: Command, count: int, options: Sequence[str]) -> None:
    """Accept connections for workers, each a `pml serve` with these options."""
    from pml_gateway.serve.http.binding import bound, check_http, url_of
    from pml_gateway.serve.limits.descriptors import raise_limit
    from pml_gateway.serve.signals import first_signal
    from pml_gateway.serve.workers.accepting import Accepting
    from pml_gateway.serve.workers.handover import check_workers
    from pml_gateway.serve.workers.local_redis import find_program, open_local_redis
    from pml_gateway.serve.workers.supervising import Crew, serve_by_workers

    check_workers()
    environ = {**WorkingDirectory.here().environ}
    settings = command.load().settings
    check_http(settings, environ)
    logs.configure(settings.log)
    async with AsyncExitStack() as stack:
        signalled = await stack.enter_async_context(first_signal())
        listener = stack.enter_context(bound(settings.http.host, settings.http.port))
        if settings.storage.url is None:
            redis = await stack.enter_async_context(
                open_local_redis(
                    find_program(environ.get("PATH")), command.paths.run_dir, settings.references.max_bytes
                )
            )
            # The environment of a process is its user's alone, as its command line is not.
            environ |= {
                "PML_STORAGE__URL": redis.url,
                "PML_STORAGE__KEY": f"${{env:{KEY_VARIABLE}}}",
                KEY_VARIABLE: redis.key,
            }
        if stdio := [name for name, server in settings.servers.items() if server.command]:
            log.get_logger(__name__).info(
                "%d workers, each with processes of its own for %s over stdio", count, counted(len(stdio), "server")
            )
        if settings.http.advertise is not None:
            text = "http.advertise (%s) is not used with --workers: each gives an address of its own at http.host"
            log.get_logger(__name__).warning(text, settings.http.advertise)
        url = url_of(listener, ENDPOINT)
        # -P, or modules could be imported from the working directory.
        program = [sys.executable, "-P", "-m", "pml_gateway", "serve", "--http", *options, "--worker"]
        crew = Crew(count, program, environ, url)
        accepting = Accepting(listener, settings.http, raise_limit())
        await serve_by_workers(crew, accepting, settings.http, partial(_announce, settings.http, url), signalled)


def _announce(settings: HttpSettings, url: str) -> None:
    note(f"listening on {url}")
    if settings.metrics:
        note(f"metrics at {url.removesuffix(ENDPOINT)}/metrics")
    if settings.console:
        note(f"console at {url.removesuffix(ENDPOINT)}/console; `pml console` opens it on this machine")


async def _serve(command: Command, sets: tuple[str, ...], *, over_http: bool, worker: str | None) -> None:
    with ExitStack() as starting:
        starting.enter_context(collection_put_off())
        await _serve_once_started(command, sets, starting, over_http=over_http, worker=worker)


async def _serve_once_started(
    command: Command, sets: tuple[str, ...], starting: ExitStack, *, over_http: bool, worker: str | None
) -> None:
    # The server stack takes 0.7 s to import, which `pml --help` and `pml config` never need.
    from pml_gateway.gateway.request import CONNECTION, LocalConnection
    from pml_gateway.local.advice import set_up_logs
    from pml_gateway.owner.alone import AloneProcess, open_alone
    from pml_gateway.policy.principal import LOCAL
    from pml_gateway.serve.runtime import TURN_SECONDS, open_runtime
    from pml_gateway.serve.signals import first_signal
    from pml_gateway.serve.stdio import serve_stdio
    from pml_gateway.upstreams.dialogue.local_clients import LocalClients

    sys.setswitchinterval(TURN_SECONDS)
    bound: set[str] = set()

    def load() -> LoadedSettings:
        fresh = command.load()
        if over_http:
            from pml_gateway.serve.http.binding import check_http

            # Also after every edit.
            check_http(fresh.settings, WorkingDirectory.here().environ, *bound)
        return fresh

    if worker is not None:
        logs.name_worker(worker.partition(":")[0])
    loaded = load()
    check_sets(sets, loaded.settings)
    set_up_logs(loaded.settings)
    bound.add(loaded.settings.http.host)
    logger = log.get_logger(__name__)
    servers = counted(len(loaded.settings.servers), "server")
    logger.info("mode %s, %s", loaded.settings.gateway.tools_exposure, servers)
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    opened_to = close_to_others(command.paths.home)
    if opened_to is not None:
        logger.warning(
            "%s was open to other users (mode %03o) and is closed to them now", command.paths.home, opened_to
        )
    warn_unwritable_places(command.paths)
    local = None if over_http else LocalClients(alone=True)

    def opener() -> AbstractAsyncContextManager[Runtime]:
        runtime = open_runtime(
            loaded,
            command.paths,
            identity=command.identity,
            load=load,
            on_open=partial(_settle, starting),
            local=local,
        )
        return open_alone(runtime, command.paths, command.identity)

    if not over_http:
        CONNECTION.set(LocalConnection(replace(LOCAL, sets=sets)))
        await serve_stdio(opener)
        return

    from pml_gateway.owner.over_http import owner_apps
    from pml_gateway.serve.http.server import serve_http
    from pml_gateway.serve.workers.handover import Handover

    handover = None
    if worker is not None:
        is_local = (loaded.settings.storage.url or "").startswith("unix:")
        # Other machines reach the sessions of this worker if they share its storage.
        handover = Handover.inherited(worker, "127.0.0.1" if is_local else loaded.settings.http.host)
    # Whoever accepts the connections of a worker says where.
    announce = partial(_announce, loaded.settings.http) if handover is None else logger.debug
    identity = command.identity
    apps = owner_apps(lambda runtime: AloneProcess(runtime, identity), command.paths, identity, load)
    # Entered before all that takes time to end.
    async with first_signal() as signalled:
        with nullcontext() if handover is None else closing(handover):
            await serve_http(opener, loaded.settings.http, announce, signalled, apps, handover)


async def _settle(starting: ExitStack, gateway: Gateway) -> None:
    from pml_gateway.local.advice import advise, follow_logs

    # What was read stays: looking for garbage in it takes as long as reading it.
    gc.freeze()
    starting.close()
    follow_logs(gateway)
    await advise(gateway)
