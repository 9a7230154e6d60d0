"""Stored keys while the gateway serves: in force as the file has them now, and what came with others ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import anyio
import anyio.to_thread

from pml_gateway.errors import SharedStateError, error_message
from pml_gateway.log import get_logger
from pml_gateway.policy.authentication import Authenticator, ClientChallenge
from pml_gateway.policy.keys import KeyStore
from pml_gateway.policy.principal import Principal

logger = get_logger(__name__)

LOOK_SECONDS = 0.5
"""Between looks at the file, which take 2 µs: a stream of notices has no next request at which to look."""

USES_SECONDS = 60.0
"""Between writings of the last uses."""

EndKeys = Callable[[frozenset[str]], Awaitable[None]]
"""Ends what came with keys of these ids."""


class ServedKeys:
    """The authenticator of a serving gateway, with its stored keys."""

    def __init__(self, store: KeyStore, authenticator: Authenticator) -> None:
        self._store = store
        self._uses: dict[str, datetime] = {}
        self._let_in: set[str] = set()
        """The keys that something came with and that were in force at the last look, or since."""
        self.serve(authenticator)

    def serve(self, authenticator: Authenticator) -> None:
        """Replace the authenticator, as the configuration has changed."""
        self.authenticator = authenticator
        self._read()

    def identify(self, authorization: str, address: str, session_id: str | None) -> Principal | ClientChallenge:
        """Return the principal of a request, or how it must be authenticated."""
        self._follow()
        identified = self.authenticator.identify(authorization, address, session_id)
        if isinstance(identified, Principal) and identified.key_id:
            self.note_use(identified.key_id)
            self._let_in.add(identified.key_id)
        return identified

    def note_use(self, key_id: str) -> None:
        """Remember when a key was used, until that is written."""
        self._uses[key_id] = datetime.now(UTC)

    async def run(self, end: EndKeys) -> None:
        """Follow the file, and end what came with keys that were revoked or have expired."""
        noted = anyio.current_time()
        try:
            while True:
                await anyio.sleep(LOOK_SECONDS)
                self._follow()
                if gone := self._let_in - self.authenticator.key_ids:
                    logger.info("keys are no longer in force: %s", ", ".join(sorted(gone)))
                    self._let_in -= gone
                    await end(frozenset(gone))
                if anyio.current_time() >= noted + USES_SECONDS:
                    noted = anyio.current_time()
                    await self._note_uses()
        finally:
            with anyio.CancelScope(shield=True):
                await self._note_uses()

    def _follow(self) -> None:
        if self._store.signature != self._signature:
            self._read()

    def _read(self) -> None:
        self._signature = self._store.signature
        self.authenticator.store(self._store.in_force(datetime.now(UTC)))

    async def _note_uses(self) -> None:
        uses, self._uses = self._uses, {}
        if uses:
            try:
                await anyio.to_thread.run_sync(partial(self._store.note_uses, uses))
            except (OSError, SharedStateError) as error:
                self._uses = {**uses, **self._uses}
                logger.warning("the last uses of keys cannot be saved yet: %s", error_message(error))
