"""Authentication over HTTP: a bearer key says who asks; nothing else does."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.policy.principal import Principal, anonymous_at, anonymous_session, configured
from pml_gateway.secrets.references import resolve

MIN_KEY_LENGTH = 16
"""Minimum length of a key: shorter ones can be guessed over HTTP."""


@dataclass(frozen=True, slots=True)
class ClientChallenge:
    """The answer to a request without a valid key: what is needed, in the words of `WWW-Authenticate`."""

    header: str


CHALLENGE = ClientChallenge('Bearer realm="pml-gateway"')


class Authenticator:
    """Makes the principal of each HTTP request; keys are stored as hashes and compared in constant time."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        """Resolve the keys with `environ`.

        Raises:
            ConfigurationError: a key cannot be resolved, is too short, or belongs to two clients.
        """
        principals = configured(settings)
        self._requires_keys = settings.requires_keys
        self._principals = [
            (_digest(checked_key(f"clients.{name}.key", entry.key, environ)), principals[name])
            for name, entry in settings.clients.items()
        ]
        digests = [digest for digest, _ in self._principals]
        if len(set(digests)) < len(digests):
            raise ConfigurationError("two clients have the same key", hint="give every entry of `clients:` its own")

    @property
    def quota_keys(self) -> frozenset[str]:
        """Return the quota keys of the principals that have a key."""
        return frozenset(principal.quota_key for _, principal in self._principals)

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
        return hmac.compare_digest(_digest(bearer(authorization)), _digest(metrics_key))

    def _holder_of(self, key: str) -> Principal | None:
        """Return the principal of a key; all keys are compared, to take constant time."""
        digest = _digest(key)
        found: Principal | None = None
        for known, principal in self._principals:
            if hmac.compare_digest(known, digest):
                found = principal
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


def _digest(key: str) -> bytes:
    # Environment variables and headers may contain bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
