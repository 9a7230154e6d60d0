"""`pml serve`: the gateway over stdio or HTTP."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import anyio
import typer

from pml_gateway import log
from pml_gateway.cli.context import Command, ConfigOption, ModeOption, PresetOption
from pml_gateway.cli.output import note
from pml_gateway.config.load import LoadedSettings
from pml_gateway.types import ExposureMode


def serve(
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP instead of stdio.")] = False,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port; 0 takes a free one. [default: 8765]", min=0, max=65535)
    ] = None,
    config: ConfigOption = None,
    mode: ModeOption = None,
    preset: PresetOption = None,
    log_level: Annotated[str, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Serve all configured MCP servers as one endpoint, over stdio or HTTP.

    Example: pml serve --http --port 8765 --mode hybrid
    """
    if not http and (host is not None or port is not None):
        raise typer.BadParameter("needs --http", param_hint="--host/--port")
    if log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter("use DEBUG, INFO, WARNING or ERROR", param_hint="--log-level")
    log.configure(log_level.upper())
    overrides: dict[str, Any] = {}
    if host is not None:
        overrides["http.host"] = host
    if port is not None:
        overrides["http.port"] = port
    command = Command(config, mode, preset, overrides=overrides)
    command.run(lambda: _serve(command, over_http=http))


async def _serve(command: Command, *, over_http: bool) -> None:
    # The server stack takes 0.7 s to import, which `pml --help` and `pml config` never need.
    from pml_gateway.policy.client import ClientKeys, check_exposure
    from pml_gateway.server.runtime import open_runtime
    from pml_gateway.server.stdio import serve_stdio

    bound: set[str] = set()

    def load() -> LoadedSettings:
        fresh = command.load()
        if over_http:
            # Also after every edit: keys that do not resolve, or none on a public address, are never put in force.
            ClientKeys(fresh.settings.clients)
            for host in {fresh.settings.http.host, *bound}:
                check_exposure(host, fresh.settings.clients)
        return fresh

    loaded = load()
    bound.add(loaded.settings.http.host)
    logger = log.get_logger(__name__)
    logger.info("mode %s, %d servers", loaded.settings.gateway.tools_exposure, len(loaded.settings.servers))
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    opener = partial(open_runtime, loaded, command.paths, identity=command.identity, load=load, on_open=_advise)
    if not over_http:
        await serve_stdio(opener)
        return
    from pml_gateway.server.serve_http import serve_http

    await serve_http(opener, loaded.settings.http, lambda url: note(f"listening on {url}"))


async def _advise(gateway: Any) -> None:
    """Say, once the tools are known, which list entries name none of them, and what full_proxy costs."""
    from pml_gateway.exposure.patterns import unmatched
    from pml_gateway.server.tokens import list_tokens

    state = await gateway.known()
    section = state.settings.gateway
    for key, entries in (
        ("gateway.blacklisted_tools", section.blacklisted_tools),
        ("gateway.hybrid.whitelisted_tools", section.hybrid.whitelisted_tools),
    ):
        for entry in unmatched(entries, state.catalog.tools):
            log.get_logger(__name__).warning("%s: %r matches no tool; `pml tools` lists the names", key, entry)
    if state.settings.gateway.tools_exposure is not ExposureMode.FULL_PROXY:
        return
    cost = await anyio.to_thread.run_sync(list_tokens, state, ExposureMode.FULL_PROXY)
    log.get_logger(__name__).warning(
        "full_proxy lists %d tools: %s tokens in every conversation; meta_only needs %s",
        cost.tools,
        f"{cost.tokens:,}",
        f"{list_tokens(state, ExposureMode.META_ONLY).tokens:,}",
    )
