"""What a list costs the model that reads it: tokens of the actual `tools/list` JSON, per mode."""

from __future__ import annotations

from dataclasses import dataclass

from pml_gateway.exposure.tokens import count_tokens
from pml_gateway.policy.client import LOCAL, Client
from pml_gateway.server.listing import own_definitions, render
from pml_gateway.server.state import GatewayState
from pml_gateway.types import ExposureMode

COUNTED_VERSION = "2025-11-25"
"""The protocol version whose list is counted: the one most clients speak."""


@dataclass(frozen=True, slots=True)
class ListCost:
    """One mode's list: how many tools, how large."""

    mode: ExposureMode
    tools: int
    bytes: int
    tokens: int


def list_tokens(state: GatewayState, mode: ExposureMode, intent: str | None = None, client: Client = LOCAL) -> ListCost:
    """Count the `tools` array a client gets in this mode. Blocks: call it in a thread for large catalogs."""
    view = state.view(client)
    exposure = state.expose(view, mode, intent)
    rendered = render(state, view, exposure, COUNTED_VERSION)
    return ListCost(
        mode,
        tools=len(exposure.tools) + len(exposure.legacy) + len(own_definitions(state, view, exposure)),
        bytes=len(rendered),
        tokens=count_tokens(rendered.decode()),
    )
