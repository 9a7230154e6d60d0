"""What an upstream said of its tools, now and before."""

from __future__ import annotations

from dataclasses import dataclass

from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class Listed:
    """One answer to `tools/list`, with what the manifest remembers of the peer."""

    tools: tuple[JsonObject, ...]
    listed_at: float
    era: str
    server_name: str
    server_version: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an earlier connection found out: the protocol era and the tools as listed."""

    era: str = ""
    tools: tuple[JsonObject, ...] = ()
