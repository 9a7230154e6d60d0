"""HTTP in addition to the bridges: the owner's configuration, served by one more gateway in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread

from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError, UpstreamTimeoutError, innermost
from pml_gateway.gateway.shared import SharedResources
from pml_gateway.local.advice import advise
from pml_gateway.local.attachment import Attachment
from pml_gateway.log import get_logger
from pml_gateway.serve.runtime import Runtime, open_runtime

if TYPE_CHECKING:
    from pml_gateway.owner.process import ServingProcess

logger = get_logger(__name__)

START_SECONDS = 20.0
"""Seconds that HTTP may take to start listening."""


class HttpListener:
    """The HTTP side of this process, started at most once, when its owner asks for it."""

    def __init__(self, tasks: anyio.abc.TaskGroup, shared: SharedResources, stop: anyio.Event) -> None:
        self.url: str | None = None
        self.closed = anyio.Event()
        self._tasks = tasks
        self._shared = shared
        self._stop = stop
        self._turns = anyio.Lock()
        self.runtimes: list[Runtime] = []

    @property
    def clients(self) -> int | None:
        """Return the number of open sessions and recent clients without one; None if nothing listens."""
        return None if self.url is None else sum(each.presence.count_clients() for each in self.runtimes)

    async def begin(self, process: ServingProcess, owner: Attachment, host: str | None, port: int | None) -> str:
        """Listen for a process and return the URL; if it listens already, return that URL.

        Raises:
            GatewayError: the configuration cannot be served over HTTP or at this address, or it is served at another.
        """
        async with self._turns:
            if self.url is None:
                self.url = await self._begun(process, owner, {"http.host": host, "http.port": port})
            elif not _is_at(self.url, host, port):
                wanted = " ".join(filter(None, (host, f"port {port}" if port else "")))
                raise GatewayError(
                    f"it listens on {self.url} already, and not on {wanted}",
                    hint="pml down ends it, and the same command starts it there",
                )
            return self.url

    async def _begun(self, process: ServingProcess, owner: Attachment, given: dict[str, str | int | None]) -> str:
        # These imports take 70 ms, and most gateways never need them.
        from pml_gateway.owner.over_http import owner_apps
        from pml_gateway.serve.http.binding import check_http
        from pml_gateway.serve.http.server import serve_http

        overrides = {key: value for key, value in given.items() if value is not None}

        def load() -> LoadedSettings:
            loaded = owner.load(overrides)
            listened_on = (bound or loaded.settings).http.host
            check_http(loaded.settings, owner.working_directory.environ, listened_on)
            return loaded

        bound: Settings | None = None
        loaded = await anyio.to_thread.run_sync(load)
        bound = loaded.settings
        outcome: list[str | GatewayError] = []
        known, given_up = anyio.Event(), anyio.CancelScope()
        self.closed = closed = anyio.Event()

        def announce(url: str) -> None:
            outcome.append(url)
            known.set()

        @asynccontextmanager
        async def opened() -> AsyncIterator[Runtime]:
            async with open_runtime(
                loaded,
                owner.paths,
                identity=owner.identity,
                load=load,
                on_open=advise,
                shared=self._shared,
                working_directory=owner.working_directory,
            ) as runtime:
                self.runtimes[:] = [runtime]
                try:
                    yield runtime
                finally:
                    self.runtimes.clear()

        async def serve() -> None:
            try:
                with given_up:
                    apps = owner_apps(lambda _: process, owner.paths, owner.identity, load)
                    await serve_http(opened, loaded.settings.http, announce, self._stop, apps)
            # A failure of HTTP must not end the clients of bridges.
            except Exception as raised:
                error = innermost(raised)
                if not isinstance(error, GatewayError):
                    logger.exception("nothing is served over HTTP any more")
                    error = GatewayError(f"nothing can be served over HTTP ({type(error).__name__})")
                outcome.append(error)
            finally:
                self.url = None
                known.set()
                closed.set()

        self._tasks.start_soon(serve)
        with anyio.move_on_after(START_SECONDS):
            await known.wait()
            if not outcome:
                raise GatewayError("the gateway of this machine ends")
            if isinstance(outcome[0], str):
                logger.info("listening on %s", outcome[0])
                return outcome[0]
            raise outcome[0]
        given_up.cancel()
        raise UpstreamTimeoutError(f"nothing listens after {START_SECONDS:g} s", hint="look into the log: pml status")


def _is_at(url: str, host: str | None, port: int | None) -> bool:
    """Return True if a URL has this address and port; None matches any value, as does port 0."""
    found = urlsplit(url)
    address = "127.0.0.1" if host == "localhost" else host and host.strip("[]")
    return address in (None, found.hostname) and port in (None, 0, found.port)
