"""Authentication over HTTP: a bearer key says who asks; nothing else does."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.policy.keys import ClientKey, digest
from pml_gateway.policy.principal import Principal, anonymous_at, anonymous_session, configured
from pml_gateway.secrets.references import resolve

MIN_KEY_LENGTH = 16
"""Minimum length of a key: shorter ones can be guessed over HTTP."""


@dataclass(frozen=True, slots=True)
class ClientChallenge:
    """The answer to a request without a valid key: what is needed, in the words of `WWW-Authenticate`."""

    header: str


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The hash of a key, and who has it; `key` is there if it is a stored one."""

    digest: bytes
    principal: Principal
    key: ClientKey | None = None

    def is_in_force(self, now: datetime) -> bool:
        """Return True if it has not expired; keys of the configuration do not."""
        return self.key is None or not self.key.has_expired(now)


CHALLENGE = ClientChallenge('Bearer realm="pml-gateway"')


class Authenticator:
    """Makes the principal of each HTTP request; keys are stored as hashes and compared in constant time."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        """Resolve the keys of the configuration with `environ`.

        Raises:
            ConfigurationError: a key cannot be resolved, is too short, or belongs to two clients.
        """
        self._principals = configured(settings)
        self._requires_keys = settings.requires_keys
        self._holders = [
            KeyHolder(digest(checked_key(f"clients.{name}.key", entry.key, environ)), self._principals[name])
            for name, entry in settings.clients.items()
            if entry.key is not None
        ]
        digests = [holder.digest for holder in self._holders]
        if len(set(digests)) < len(digests):
            raise ConfigurationError("two clients have the same key", hint="give every entry of `clients:` its own")
        self._stored: list[KeyHolder] = []

    def store(self, keys: Mapping[str, ClientKey]) -> None:
        """Take these stored keys, by id, of clients that the configuration has, instead of those before."""
        self._stored = [
            KeyHolder(bytes.fromhex(key.sha256), replace(self._principals[key.client], key_id=key_id), key)
            for key_id, key in keys.items()
            if key.client in self._principals
        ]

    @property
    def quota_keys(self) -> frozenset[str]:
        """Return the quota keys of the principals that have a key."""
        return frozenset(holder.principal.quota_key for holder in (*self._holders, *self._stored))

    @property
    def key_ids(self) -> frozenset[str]:
        """Return the ids of the stored keys that are in force."""
        now = datetime.now(UTC)
        return frozenset(holder.principal.key_id for holder in self._stored if holder.is_in_force(now))

    def identify(self, authorization: str, address: str, session_id: str | None = None) -> Principal | ClientChallenge:
        """Return the principal of a request, or how it must be authenticated.

        Args:
            authorization: its header of this name, or an empty text.
            address: the address that it comes from.
            session_id: the session that it says to belong to.
        """
        if self._requires_keys:
            return self._holder_of(bearer(authorization)) or CHALLENGE
        unknown = anonymous_at(address)
        return unknown if session_id is None else anonymous_session(session_id, unknown.quota_key)

    def may_scrape(self, authorization: str, metrics_key: str | None) -> bool:
        """Return True if a request may read metrics; they name what a client may not see, so its own key is none."""
        if metrics_key is None:
            return not self._requires_keys
        return hmac.compare_digest(digest(bearer(authorization)), digest(metrics_key))

    def _holder_of(self, key: str) -> Principal | None:
        """Return the principal of a key; all keys are compared, to take constant time."""
        given, now = digest(key), datetime.now(UTC)
        found: Principal | None = None
        for holder in (*self._holders, *self._stored):
            if hmac.compare_digest(holder.digest, given) and holder.is_in_force(now):
                found = holder.principal
        return found


def checked_key(setting: str, reference: str, environ: Mapping[str, str]) -> str:
    """Return the key that a setting refers to.

    Raises:
        ConfigurationError: it cannot be resolved, or is too short.
    """
    key = resolve(reference, environ)
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigurationError(
            f"{setting} has {len(key)} characters; at least {MIN_KEY_LENGTH} are needed",
            hint="create one with: openssl rand -hex 24",
        )
    return key


def bearer(authorization: str) -> str:
    """Return the bearer key of an `Authorization` header, or an empty text."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
