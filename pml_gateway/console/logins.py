"""Logins that a page has started: each waits for a person in the browser, within its time."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from cachetools import LRUCache

from pml_gateway.background import Background
from pml_gateway.config.problems import server_entry
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import RECONNECT
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from pml_gateway.upstreams.auth.callback import Callback
from pml_gateway.upstreams.auth.login import checked_auth, log_in
from pml_gateway.upstreams.auth.logins import LoginStore

LOGIN_SECONDS = 300.0
"""Seconds that a person gets to log in, as with `pml upstreams login`."""

ADDRESS_SECONDS = 30.0
"""Seconds for a server and its authorization server to say where."""

TELL_SECONDS = 5.0

MAX_KEPT = 100
"""Servers whose last outcome is shown."""


@dataclass(slots=True)
class _Login:
    """One attempt: the address to log in at, or the error that ended it."""

    server: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_known: anyio.Event = field(default_factory=anyio.Event)
    address: str = ""
    error: GatewayError | None = None


class RunningLogins:
    """The logins of one console; `run` must run for any to begin."""

    def __init__(self) -> None:
        self._background = Background()
        self._latest: LRUCache[str, _Login] = LRUCache(MAX_KEPT)

    async def run(self) -> None:
        """Run logins until cancelled."""
        await self._background.run()

    def problem(self, server: str) -> str:
        """Return why the last login at a server failed; an empty text if it did not."""
        latest = self._latest.get(server)
        return "" if latest is None or latest.error is None else str(latest.error)

    async def start(self, server: str, settings: Settings, paths: Paths) -> str:
        """Start a login in place of an earlier one; return the address for the browser, or nothing if none is needed.

        Raises:
            GatewayError: the server does not support a login, or refused.
        """
        definition = server_entry(settings, server)
        checked_auth(server, definition)
        if (earlier := self._latest.get(server)) is not None:
            earlier.scope.cancel()
        login = self._latest[server] = _Login(server)

        async def show(address: str, _: Callback) -> None:
            login.address = address
            login.is_known.set()

        async def work() -> None:
            with login.scope:
                try:
                    await log_in(server, definition, LoginStore(paths.auth_dir), show, timeout=LOGIN_SECONDS)
                    await ask_gateways(paths, RECONNECT, TELL_SECONDS, {"server": server})
                except GatewayError as error:
                    login.error = error
                finally:
                    login.is_known.set()

        self._background.start(work)
        with anyio.move_on_after(ADDRESS_SECONDS):
            await login.is_known.wait()
        if login.error is not None:
            raise login.error
        if not login.is_known.is_set() or (login.address and not login.address.startswith(("https://", "http://"))):
            login.scope.cancel()
            raise GatewayError(
                f"{server}: no address to log in at within {ADDRESS_SECONDS:g} s", hint=f"pml upstreams login {server}"
            )
        return login.address
