"""The client of a request, identified by its origin and key, never by the name that it gives."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pml_gateway.config.settings import ClientSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.quotas import share_of_address
from pml_gateway.secrets.references import resolve
from pml_gateway.types import ExposureMode
from pml_gateway.working_directory import WorkingDirectory

_CONFIGURED = "client:"
MIN_KEY_LENGTH = 16
"""Minimum length of a key: shorter ones can be guessed over HTTP."""


@dataclass(frozen=True, slots=True)
class Client:
    """A principal: its permissions, and the mode and intent that its owner set for it.

    `client_capabilities` are the questions that it supports, by which some servers choose their offers. `address` is
    the share of all clients at its address if it has no key.
    """

    id: str
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    mode: ExposureMode | None = None
    intent: str | None = None
    client_capabilities: str = ""
    address: str = ""

    @property
    def share(self) -> str:
        """Return the share that its resources are counted for: its own, or that of its address."""
        return self.address or self.id

    @property
    def rules(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the rules that decide visibility; clients with equal rules share one view."""
        return (self.allow, self.deny)

    @property
    def sees_everything(self) -> bool:
        """Return True if no rule of its own hides a tool from it."""
        return "*" in self.allow and not self.deny


LOCAL = Client("local")
"""The client that started the gateway as a stdio process."""

_ATTACHED = f"{LOCAL.id}:"


def local_client(name: str) -> Client:
    """Return one of several local clients, with the rights of `LOCAL`."""
    return replace(LOCAL, id=_ATTACHED + name)


OWNER = Client("owner")
"""The gateway's owner, who runs commands."""

ANONYMOUS = Client("anonymous")
"""All HTTP requests without a key, if no keys are configured."""


@lru_cache(4096)
def anonymous_at(address: str) -> Client:
    """Return the client for requests without a key from this address."""
    return replace(ANONYMOUS, address=share_of_address(address))


class ClientKeys:
    """The configured bearer keys, stored as hashes and compared in constant time."""

    def __init__(self, clients: Mapping[str, ClientSettings], environ: Mapping[str, str] | None = None) -> None:
        """Resolve the keys with `environ`, or with the variables of this process.

        Raises:
            ConfigurationError: a key cannot be resolved, is too short, or belongs to two clients.
        """
        given = WorkingDirectory.here().environ if environ is None else environ
        self._clients = [
            (_digest(_key(name, entry, given)), configured_client(name, entry)) for name, entry in clients.items()
        ]
        digests = [digest for digest, _ in self._clients]
        if len(set(digests)) < len(digests):
            raise ConfigurationError("two clients have the same key", hint="give every entry of `clients:` its own")

    def __bool__(self) -> bool:
        """Return True if any key is configured, so that every request requires one."""
        return bool(self._clients)

    @property
    def shares(self) -> frozenset[str]:
        """Return the shares of the clients that have a key."""
        return frozenset(client.share for _, client in self._clients)

    def find(self, key: str) -> Client | None:
        """Return the client of this key; all keys are compared, to take constant time."""
        digest = _digest(key)
        found: Client | None = None
        for known, client in self._clients:
            if hmac.compare_digest(known, digest):
                found = client
        return found


def _key(name: str, entry: ClientSettings, environ: Mapping[str, str]) -> str:
    key = resolve(entry.key, environ)
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigurationError(
            f"clients.{name}.key has {len(key)} characters; at least {MIN_KEY_LENGTH} are needed",
            hint="create one with: openssl rand -hex 24",
        )
    return key


def configured_client(name: str, entry: ClientSettings) -> Client:
    """Return the principal for requests with this client's key."""
    return Client(f"{_CONFIGURED}{name}", allow=entry.allow, deny=entry.deny, mode=entry.mode, intent=entry.intent)


def current_client(client: Client, clients: Mapping[str, ClientSettings]) -> Client | None:
    """Return the client according to the current settings, for long-lived state; None if its key was removed."""
    if not client.id.startswith(_CONFIGURED):
        return None if clients and not is_local(client) else client
    name = client.id.removeprefix(_CONFIGURED)
    entry = clients.get(name)
    return (
        None
        if entry is None
        else replace(configured_client(name, entry), client_capabilities=client.client_capabilities)
    )


def is_local(client: Client) -> bool:
    """Return True if the client is connected over stdio, as a process of the gateway's owner."""
    return client.id == LOCAL.id or client.id.startswith(_ATTACHED)


def _digest(key: str) -> bytes:
    # Environment variables and headers may contain bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_exposure(host: str, clients: Mapping[str, ClientSettings]) -> None:
    """Refuse a public address without keys, since anyone could call every tool.

    Raises:
        ConfigurationError: the address is not loopback and `clients:` is empty.
    """
    if not is_loopback(host) and not clients:
        raise ConfigurationError(
            f"http.host {host!r} is reachable from other machines, and no client key is configured",
            hint="add a key under `clients:`, or serve on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Return True if the address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
