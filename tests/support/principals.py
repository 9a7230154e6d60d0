"""Principals, as a test writes them down."""

from __future__ import annotations

from typing import Any

from pml_gateway.policy.principal import Principal, PrincipalKind
from pml_gateway.policy.rules import Rules


def principal(
    principal_id: str,
    kind: PrincipalKind = PrincipalKind.CLIENT,
    *,
    allow: tuple[str, ...] = ("*",),
    deny: tuple[str, ...] = (),
    **others: Any,
) -> Principal:
    """Return the principal with these rules, by default the holder of a key."""
    return Principal(principal_id, kind, Rules(allow, deny), **others)
