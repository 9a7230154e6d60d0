"""The owner's tokens over HTTP: in force as their file has them now, and guesses limited by address."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime

from cachetools import TTLCache

from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.policy.keys import ClientKey, KeyStore, digest
from pml_gateway.quotas import quota_key_of_address

MAX_GUESSES = 10
GUESS_SECONDS = 60.0
"""Wrong tokens that an address may send in so many seconds. A token cannot be guessed anyway; this keeps logs short."""

MAX_ADDRESSES = 10_000
"""Maximum number of addresses whose guesses are counted; the one that guessed first is forgotten."""


class TooManyGuessesError(GatewayError):
    """Too many wrong tokens from one address, from which even the right one is refused for a while."""

    code = ErrorCode.RATE_LIMITED
    retryable = True


class OwnerTokens:
    """The owner's tokens of a serving gateway.

    Args:
        store: the store of the owner.
        note_use: told the id of a token that was used.
        clock: a clock in seconds.
    """

    def __init__(
        self, store: KeyStore, note_use: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._note_use = note_use
        self._guesses: TTLCache[str, int] = TTLCache(MAX_ADDRESSES, GUESS_SECONDS, timer=clock)
        self._signature = store.signature
        self._tokens = store.in_force(datetime.now(UTC))

    @property
    def in_force(self) -> dict[str, ClientKey]:
        """Return the tokens by id."""
        if (signature := self._store.signature) != self._signature:
            self._signature, self._tokens = signature, self._store.in_force(datetime.now(UTC))
        now = datetime.now(UTC)
        return {key_id: token for key_id, token in self._tokens.items() if not token.has_expired(now)}

    def identify(self, token: str, address: str) -> str | None:
        """Return the id of a token, or None if there is no such token; all are compared, to take constant time.

        Raises:
            TooManyGuessesError: the address has sent too many wrong ones.
        """
        sender = quota_key_of_address(address)
        if self._guesses.get(sender, 0) >= MAX_GUESSES:
            raise TooManyGuessesError(
                f"more than {MAX_GUESSES} wrong tokens from this address in {GUESS_SECONDS:g} s",
                hint=f"try again in {GUESS_SECONDS:g} s",
            )
        given = digest(token)
        found = [
            key_id for key_id, known in self.in_force.items() if hmac.compare_digest(bytes.fromhex(known.sha256), given)
        ]
        if found:
            self._note_use(found[0])
            return found[0]
        self._guesses[sender] = self._guesses.get(sender, 0) + 1
        return None
