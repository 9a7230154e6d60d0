"""The second try of a call: what an error says is done, and nothing else is known but the values that were meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def second_try(
    tool: str, arguments: dict[str, Any], error: Mapping[str, Any], meant: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The arguments to send instead; None where the error says nothing that could be done."""
    del tool, arguments, error, meant
    return None
