"""Doctor: all checks in their order, and the report of their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.paths import Paths
from pml_gateway.reports.doctor.clients import clients, long_names
from pml_gateway.reports.doctor.configuration import broken, commands, configuration, secrets, server_of
from pml_gateway.reports.doctor.files import files, versions
from pml_gateway.reports.doctor.finding import Area, Finding, Severity, from_text
from pml_gateway.reports.doctor.gateways import gateways, listener_on
from pml_gateway.reports.doctor.search import index, manifest, model, requests
from pml_gateway.reports.doctor.servers import LastWords, resources, servers
from pml_gateway.reports.doctor.tools import checked_shallowly, disabled, kept_away, tools
from pml_gateway.reports.doctor.trust import trust
from pml_gateway.reports.status import Progress, by_process, tell_waiting
from pml_gateway.reports.workflows import workflow_warnings
from pml_gateway.serve.control import ask_sockets

SOCKET_SECONDS = 5.0
INDEX_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Examination:
    """Scope of an examination; `timeout` defaults to the slowest server's own limit.

    `machine` looks at the gateway that clients share; it blocks.
    """

    paths: Paths
    config_file: Path
    identity: str
    surroundings: Surroundings
    load: Callable[[], LoadedSettings]
    machine: Callable[[Settings | None], Iterable[Finding]]
    timeout: float | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that references are looked up in."""
        return self.surroundings.environ


async def examine(case: Examination, progress: Progress) -> list[Finding]:
    """Every finding, by area; a configuration that does not load leaves only what needs none to be looked at."""
    progress("reading the configuration")
    try:
        loaded = case.load()
    except ConfigurationError as error:
        found = [*broken(error), *await _surroundings(case, None), *versions()]
    else:
        found = await _examined(case, loaded, progress)
    order = list(Area)
    return sorted((finding.masked() for finding in found), key=lambda finding: order.index(finding.area))


async def _examined(case: Examination, loaded: LoadedSettings, progress: Progress) -> list[Finding]:
    settings = loaded.settings
    found = [*configuration(loaded, case.environ), *secrets(settings, case.environ), *commands(settings, case.environ)]
    for warning in workflow_warnings(settings, case.paths, case.identity):
        found.append(from_text(Area.CONFIGURATION, Severity.WARNING, warning))
    progress("looking at files, clients and ports")
    found += await _surroundings(case, settings)
    found += versions()
    progress("loading the embedding model")
    found.append(await anyio.to_thread.run_sync(model, settings))
    if any(definition.enabled for definition in settings.servers.values()):
        explained = [server for finding in found if (server := server_of(finding)) is not None]
        found += await _running(case, settings, explained, progress)
    return found


async def _surroundings(case: Examination, settings: Settings | None) -> list[Finding]:
    """Check files and processes around the gateway; with the default settings if there are none."""
    http = settings.http if settings is not None else HttpSettings()
    answers, dead = await ask_sockets(case.paths, "status", SOCKET_SECONDS)
    listener = await anyio.to_thread.run_sync(listener_on, http.host, http.port)
    is_serving = listener is not None
    found = [
        *await anyio.to_thread.run_sync(lambda: [*case.machine(settings)]),
        *gateways(by_process(answers), dead, http, listener),
        *files(case.paths, settings, case.environ, case.config_file),
    ]
    if settings is not None:
        found += clients(settings, case.surroundings, is_serving_http=is_serving)
    return found


async def _running(
    case: Examination, settings: Settings, explained: Sequence[str], progress: Progress
) -> list[Finding]:
    """Start a gateway, have every server list its tools, and look at what came of it."""
    naming, paths = settings.naming, case.paths
    file = ManifestFile.of(paths.manifest_dir, case.identity, naming.prefix, naming.max_length)
    found = list(manifest(file, settings))
    last_words = LastWords(paths.logs_dir, settings.servers)
    async with open_gateway(
        settings, paths, identity=case.identity, meta_tools=ALL_META_TOOLS, connect=False
    ) as gateway:
        waited = case.timeout or _slowest(gateway)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_waiting, gateway, progress)
            await gateway.refresh(waited)
            tasks.cancel_scope.cancel()
        found += servers(gateway, last_words, waited, explained)
        found += resources(gateway.state.catalog.offers)
        progress("indexing the tools")
        is_current = await gateway.wait_for_index(INDEX_SECONDS)
        known = gateway.state.catalog.listed_upstreams
        silent = [name for name in gateway.pool.upstreams if name not in known]
        silent = [name for name in silent if gateway.pool.upstreams[name].last_listed is None]
        found += tools(settings, gateway.state.catalog, silent, kept_away(gateway.trust_gate.servers, settings))
        found += disabled(settings)
        exceeded = await anyio.to_thread.run_sync(gateway.exceeded.on_disk)
        found += checked_shallowly(gateway.state.catalog, exceeded)
        found += long_names(gateway.state, case.surroundings)
        progress("reading what servers say of themselves")
        await gateway.judge_unread()
        found += trust(gateway.trust_gate)
        found.append(await anyio.to_thread.run_sync(index, gateway.state, is_current))
        found.append(requests(gateway.state))
    return found


def _slowest(gateway: Gateway) -> float:
    return max(upstream.longest_start for upstream in gateway.pool.upstreams.values()) + 1
