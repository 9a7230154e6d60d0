"""Everything one serving process needs, opened and closed together: gateway, MCP server, reload."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pml_gateway.activity.sharing import ActivitySharing
from pml_gateway.config.load import LoadedSettings
from pml_gateway.gateway.activity import ActivitySubscriber, ListCosts
from pml_gateway.gateway.audit import AuditSubscriber
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.events import ToolsListed
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.pending_runs import PendingRuns
from pml_gateway.gateway.prompts_and_resources import PromptAndResourceRequests
from pml_gateway.gateway.resource_subscriptions import ResourceFollowers
from pml_gateway.gateway.shared import SharedResources
from pml_gateway.gateway.shared_tasks import SharedTasks
from pml_gateway.gateway.task_records import TaskRecords
from pml_gateway.gateway.tasks import Tasks
from pml_gateway.log import get_logger
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.policy.keys import KeyStore
from pml_gateway.serve.list_changes import Subscribers
from pml_gateway.serve.protocol import GatewayServer, build_server
from pml_gateway.serve.reload import LoadSettings, follow_files, reload
from pml_gateway.telemetry.events import ListsCounted
from pml_gateway.telemetry.setup import open_watching
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.sharing import WantedUpstream
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.telemetry.prometheus import PrometheusMetrics


logger = get_logger(__name__)

TURN_SECONDS = 0.001
"""Seconds that a thread of a serving process may keep others from running Python. Lists, names and indexes are made in
threads, and with Python's own 5 ms the event loop, which needs many short turns, would stand still several times as
long beside them."""


OnOpen = Callable[[Gateway], Coroutine[Any, Any, None]]
"""Runs beside the gateway from its start."""


@dataclass(slots=True)
class Presence:
    """The clients of one gateway. Over stdio there is one; over HTTP the endpoint and its clients are told it.

    The gateway of a machine knows by name and folder which clients are attached to it.
    """

    transport: str
    url: str | None = None
    count_clients: Callable[[], int] = lambda: 1
    attached: Callable[[], Sequence[JsonObject]] = tuple
    console_link: Callable[[], str] | None = None
    """Makes the address that opens the console, if the gateway serves it."""
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """A gateway that serves."""

    gateway: Gateway
    caller: Caller
    server: GatewayServer
    presence: Presence
    keys: KeyStore
    owner_tokens: KeyStore
    reload: Callable[[], Awaitable[str | None]]
    """Loads the configuration and serves by it; returns the problem of a broken one."""
    metrics: PrometheusMetrics | None = None


OpenRuntime = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens the runtime of one serving process."""


@asynccontextmanager
async def open_runtime(
    loaded: LoadedSettings,
    paths: Paths,
    *,
    identity: str,
    load: LoadSettings,
    on_open: OnOpen | None = None,
    open_streams: OpenStreams | None = None,
    local: LocalClients | None = None,
    shared: SharedResources | None = None,
    working_directory: WorkingDirectory | None = None,
    wanted: Mapping[str, WantedUpstream] | None = None,
) -> AsyncIterator[Runtime]:
    """Open the gateway and everything that keeps it current; `local` are the clients that it serves over stdio.

    Args:
        working_directory: folder and variables of the clients; by default those of this process.
        shared: resources that the gateways of one process share.
        wanted: upstreams of the configuration, if they are known already.
    """
    working_directory = working_directory or WorkingDirectory.here()
    local = local if shared is None else shared.upstreams.local
    async with (
        open_watching(loaded.settings, working_directory.environ, shared.decisions if shared else None) as watching,
        open_gateway(
            loaded.settings,
            paths,
            identity=identity,
            meta_tools=ALL_META_TOOLS,
            open_streams=open_streams,
            local=local,
            shared=shared,
            wanted=wanted,
            events=watching.events,
            working_directory=working_directory,
        ) as gateway,
        gateway.shared.activity.limited_by(lambda: gateway.state.settings.activity),
        anyio.create_task_group() as tasks,
    ):
        sharing = _open_sharing(gateway, identity)
        if sharing is not None:
            tasks.start_soon(sharing.run)
        ActivitySubscriber(identity, gateway.shared.activity, sharing).subscribe_to(gateway.events)
        AuditSubscriber(identity, paths.home, gateway.shared.audit, watching.export_access).subscribe_to(gateway.events)
        calls_as_tasks = await _open_tasks(gateway, paths, identity)
        caller = Caller(gateway, calls_as_tasks, PendingRuns(gateway.replicas))
        followers = ResourceFollowers(gateway)
        subscribers = Subscribers(gateway, followers)
        offers = PromptAndResourceRequests(gateway, caller, followers)
        server = build_server(gateway, caller, subscribers, offers, watching.spans)
        if gateway.events.reach(ListsCounted):
            costs = ListCosts(gateway.events)
            gateway.events.subscribe(ToolsListed, costs.listed)
            tasks.start_soon(costs.run)
        tasks.start_soon(calls_as_tasks.run)
        tasks.start_soon(followers.run)
        tasks.start_soon(subscribers.run)
        tasks.start_soon(follow_files, gateway, loaded, load, watched_files(paths, working_directory))
        if shared is None:
            tasks.start_soon(refresh_on_hangup, lambda: [gateway])
        if on_open is not None:
            tasks.start_soon(on_open, gateway)
        presence = Presence("http" if local is None else "stdio")
        reloading = partial(reload, gateway, load)
        keys = KeyStore(paths, identity, documents=gateway.documents)
        tokens = KeyStore(paths, identity, of_owner=True, documents=gateway.documents)
        await gateway.pull_documents()
        yield Runtime(gateway, caller, server, presence, keys, tokens, reloading, watching.prometheus)
        tasks.cancel_scope.cancel()


def _open_sharing(gateway: Gateway, identity: str) -> ActivitySharing | None:
    if gateway.replicas is None or gateway.state.settings.activity.sink == "file":
        return None

    def is_recording() -> bool:
        return gateway.state.settings.activity.record

    server, replica = gateway.replicas.server, gateway.replicas.own.id
    return ActivitySharing(server, gateway.shared.activity, replica, identity, is_recording)


async def _open_tasks(gateway: Gateway, paths: Paths, identity: str) -> Tasks:
    """Return the tasks of a gateway, with those of other replicas in Redis, or else those of before in a file."""
    if gateway.replicas is not None:
        return Tasks(gateway, shared=SharedTasks(gateway.replicas))
    tasks = Tasks(gateway, TaskRecords(paths.tasks_dir, identity))
    await tasks.restore()
    return tasks


def watched_files(paths: Paths, working_directory: WorkingDirectory) -> tuple[Path, ...]:
    """Files that change what is served, also those that do not exist yet."""
    return (paths.config_file, paths.secrets_file, paths.trust_file, working_directory.folder / PROJECT_NAME)


async def refresh_on_hangup(gateways: Callable[[], Iterable[Gateway]]) -> None:
    """Have every upstream of the gateways of this process listed anew at each SIGHUP."""
    if not hasattr(signal, "SIGHUP"):
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            logger.info("SIGHUP: refreshing every upstream")
            for gateway in gateways():
                gateway.pool.request_all()
                await gateway.rank()
