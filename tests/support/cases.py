"""Cases for the checks of doctor, with nothing in them but what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog
from pml_gateway.clients.model import System
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.state import GatewayState
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.reports.doctor.cases import MachineCase, StartedCase
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.trust_gate import TrustGate
from tests.support.memory import paths_in

NOWHERE = Path("/nowhere")


def machine_case(home: Path, surroundings: Surroundings | None = None, settings: Settings | None = None) -> MachineCase:
    """A machine on which no gateway runs."""
    around = surroundings or Surroundings(System.LINUX, {}, NOWHERE)
    return MachineCase(settings or Settings(), {}, paths_in(home), str(home / "config.yaml"), around)


def started_case(
    catalog: Catalog | None = None,
    settings: Settings | None = None,
    *,
    trust_gate: TrustGate | None = None,
    surroundings: Surroundings | None = None,
    exceeded: Mapping[str, str] | None = None,
) -> StartedCase:
    """A gateway whose servers have all answered."""
    settings, catalog = settings or Settings(), catalog or build_catalog([])
    return StartedCase(
        settings,
        {},
        GatewayState(settings, catalog, None, meta_tools=ALL_META_TOOLS),
        trust_gate or TrustGate(PinsFile(NOWHERE, "id")),
        {},
        (),
        (),
        surroundings or Surroundings(System.LINUX, {}, NOWHERE),
        exceeded or {},
        lambda _: (),
        0.0,
        True,
    )
