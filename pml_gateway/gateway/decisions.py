"""Decisions about attempts to use something, and what makes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp.shared.exceptions import MCPError

from pml_gateway.errors import GatewayError


@dataclass(frozen=True, slots=True)
class CallRefusal:
    """The decision against a call: the error that its client gets, and the rule behind it for the owner."""

    error: GatewayError | MCPError
    rule: str = ""


Decision = CallRefusal | None
"""None allows."""

Decider = Callable[[Any], Awaitable[Decision]]
"""Decides whether an `Attempt` is made, by the arguments that would be sent to the server."""
