"""Principals, as a test writes them down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.policy.principal import Principal, PrincipalKind
from pml_gateway.policy.rules import CompiledGrants, Grant, Rules


def principal(
    principal_id: str,
    kind: PrincipalKind = PrincipalKind.CLIENT,
    *,
    allow: tuple[str, ...] = ("*",),
    deny: tuple[str, ...] = (),
    **others: Any,
) -> Principal:
    """Return the principal with these rules, by default the holder of a key."""
    return Principal(principal_id, kind, Rules(((Grant(allow),),), deny), **others)


def granting(entries: Sequence[str], ownership: Ownership) -> CompiledGrants:
    """Return what these entries give."""
    return Rules(((Grant(tuple(entries)),),)).compiled(ownership)
