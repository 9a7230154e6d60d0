"""The principal of a request: identified by its origin and key, never by the name that it gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import assert_never

from pml_gateway.config.settings import Settings
from pml_gateway.policy.rules import EVERYTHING, Rules
from pml_gateway.policy.sets import Rights, given_sets, rights_of, roles_of
from pml_gateway.quotas import quota_key_of_address
from pml_gateway.types import ExposureMode


class PrincipalKind(StrEnum):
    """The way in which a principal was identified."""

    LOCAL = "local"
    """A process of the gateway's owner, over stdio."""
    OWNER = "owner"
    """The gateway's owner, who runs commands."""
    CLIENT = "client"
    """The holder of a configured key."""
    USER = "user"
    """The user who logged in at a FastMCP server."""
    ANONYMOUS = "anonymous"
    """A request without a key, where none is configured."""


@dataclass(frozen=True)
class Principal:
    """The client of a request: its rules, and the mode, intent and roles (by name) that its owner set for it.

    `sets` are the names of the sets and roles that a local client was started with. `client_name` is what it calls
    itself, by which its owner may narrow what it sees. `client_capabilities` are the questions that its client
    supports, by which some servers choose their offers. What it holds is counted for `quota_key`: its own id, or that
    of all without a key at its address.
    """

    id: str
    kind: PrincipalKind
    rules: Rules = EVERYTHING
    mode: ExposureMode | None = None
    intent: str | None = None
    roles: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    client_name: str = ""
    client_capabilities: str = ""
    quota_key: str = ""
    key_id: str = field(default="", compare=False)
    """The stored key that it was identified by, if it was."""

    def __post_init__(self) -> None:
        if not self.quota_key:
            object.__setattr__(self, "quota_key", self.id)

    @cached_property
    def shown(self) -> str:
        """Return its name for logs and records: that of a configured client, else the kind; session ids are keys."""
        return self.id.removeprefix(_CONFIGURED) if self.kind is PrincipalKind.CLIENT else self.kind.value

    @cached_property
    def digest(self) -> str:
        """Return the digest of its id, under which its results and tasks are stored."""
        return hashlib.sha256(self.id.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def has_own_records(self) -> bool:
        """Return True if nobody else is recorded under its `shown` name."""
        match self.kind:
            case PrincipalKind.CLIENT:
                return self.shown not in _KINDS
            case PrincipalKind.LOCAL | PrincipalKind.OWNER:
                return True
            case PrincipalKind.USER | PrincipalKind.ANONYMOUS:
                return False
            case _ as unknown:
                assert_never(unknown)

    @property
    def account(self) -> str:
        """Return the owner of its sessions over HTTP: itself with its key, or all that have none."""
        return ANONYMOUS.id if self.kind is PrincipalKind.ANONYMOUS else self.id


_CONFIGURED = f"{PrincipalKind.CLIENT}:"
_KINDS = frozenset(kind.value for kind in PrincipalKind)

LOCAL = Principal("local", PrincipalKind.LOCAL)
"""The client that started the gateway as a stdio process."""

OWNER = Principal("owner", PrincipalKind.OWNER)

ANONYMOUS = Principal("anonymous", PrincipalKind.ANONYMOUS)
"""All HTTP requests without a key and a session, if no keys are configured."""


def local_client(name: str, sets: tuple[str, ...] = ()) -> Principal:
    """Return one of several local clients, with these sets, or with the rights of `LOCAL` if there are none."""
    return Principal(f"{LOCAL.id}:{name}", PrincipalKind.LOCAL, sets=sets)


@lru_cache(4096)
def anonymous_at(address: str) -> Principal:
    """Return the principal for requests without a key from this address."""
    return replace(ANONYMOUS, quota_key=quota_key_of_address(address))


def anonymous_session(session_id: str, quota_key: str = "") -> Principal:
    """Return the principal of one session without a key; what it holds is its own unless it is an address's."""
    return Principal(f"session:{session_id}", PrincipalKind.ANONYMOUS, quota_key=quota_key)


def configured(settings: Settings) -> dict[str, Principal]:
    """Return the principals that have a key, by their names in the configuration."""
    holders = {name: Principal(f"{_CONFIGURED}{name}", PrincipalKind.CLIENT) for name in settings.clients}
    return {name: now for name, holder in holders.items() if (now := current(holder, settings)) is not None}


def rights(principal: Principal, settings: Settings) -> Rights | None:
    """Return the rights of a client under these settings; None if it may no longer ask."""
    entry: str | None = None
    match principal.kind:
        case PrincipalKind.CLIENT if principal.shown not in settings.clients:
            return None
        case PrincipalKind.CLIENT:
            entry = principal.shown
        case PrincipalKind.ANONYMOUS if settings.requires_keys:
            return None
        case PrincipalKind.LOCAL | PrincipalKind.ANONYMOUS:
            pass
        case PrincipalKind.OWNER | PrincipalKind.USER:
            return None if settings.requires_keys else Rights(principal.rules, principal.mode, principal.intent)
        case _ as unknown:
            assert_never(unknown)
    groups = given_sets(settings, entry, principal.sets, principal.client_name)
    return rights_of(groups, roles_of(settings, entry, principal.sets))


def with_rights(principal: Principal, given: Rights) -> Principal:
    """Return a principal with the rights that it has now."""
    now = (given.rules, given.mode, given.intent, given.roles)
    if now == (principal.rules, principal.mode, principal.intent, principal.roles):
        return principal
    return replace(principal, rules=given.rules, mode=given.mode, intent=given.intent, roles=given.roles)


def named(name: str, settings: Settings) -> Principal | None:
    """Return the principal that is shown under a name: a configured client, or a kind of which one is enough."""
    if (client := configured(settings).get(name)) is not None:
        return client
    return Principal(name, PrincipalKind(name)) if name in _KINDS - {PrincipalKind.CLIENT.value} else None


def current(principal: Principal, settings: Settings) -> Principal | None:
    """Return the principal of long-lived state under the current settings; None if it may no longer ask."""
    given = rights(principal, settings)
    return None if given is None else with_rights(principal, given)
