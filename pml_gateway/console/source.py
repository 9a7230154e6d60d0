"""The interface to a gateway through which pages get the answers that commands print with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pml_gateway.config.findings import Area, Finding, by_area, from_error
from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import EXAMINE, OfGateway
from pml_gateway.paths import Paths
from pml_gateway.reports.doctor.examine import with_repairs
from pml_gateway.types import JsonObject

ResultT = TypeVar("ResultT")


class GatewaySource(Protocol):
    """A running gateway, as its owner's commands reach it. Its errors are `GatewayError`s."""

    @property
    def identity(self) -> str:
        """Return the configuration file, by which activity is recorded."""
        ...

    @property
    def paths(self) -> Paths:
        """Return the paths of the gateway's files, which changes are written to."""
        ...

    def load(self) -> LoadedSettings:
        """Return the settings in force. Blocking."""
        ...

    async def status(self) -> JsonObject:
        """Return what `pml status --json` prints."""
        ...

    async def approvals(self) -> list[JsonObject]:
        """Return the calls that wait for the owner, as `pml approvals show --json` prints them."""
        ...

    async def examine(self) -> list[Finding]:
        """Return what `pml doctor` finds, each with its repair if it has one."""
        ...

    async def ask(
        self, operation: OfGateway[ResultT], arguments: Mapping[str, Any], *, mode: str | None = None
    ) -> ResultT:
        """Return the result of an operation, of clients in a mode if one is given."""
        ...


async def findings_of(source: GatewaySource, found: list[Finding], folder: Path | None) -> list[Finding]:
    """Return what `pml doctor` found without servers, and what the gateway finds of them, for clients in a folder.

    `folder` is None if there are no servers.
    """
    if folder is not None:
        try:
            found += with_repairs(await source.ask(EXAMINE, {"seconds": None, "folder": str(folder)}))
        except GatewayError as error:
            found.append(from_error(Area.SERVERS, error))
    return by_area(found)
