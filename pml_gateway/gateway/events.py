"""Events of clients: a search, a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.state import GatewayState


@dataclass(frozen=True, slots=True)
class ToolsSearched:
    """A client searched for tools and was shown `hits`, the first of them at place `offset`."""

    state: GatewayState
    scope: RequestScope
    query: str
    hits: Sequence[CatalogTool]
    offset: int


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """A client was given a list, selected by `intent` where its mode reads one."""

    state: GatewayState
    scope: RequestScope
    intent: str | None
    tools_json: bytes
    digest: bytes
    version: str
