"""Cases of checks that need more than settings: this machine, a gateway, and servers that were started for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.places import Surroundings
from pml_gateway.config.findings import Finding, SettingsCase
from pml_gateway.gateway.state import GatewayState
from pml_gateway.paths import Paths
from pml_gateway.reports.status import ProcessStatus
from pml_gateway.trust.trust_gate import TrustGate
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.upstream import Upstream


@dataclass(frozen=True, slots=True)
class MachineCase(SettingsCase):
    """Files and processes around a gateway; with the default settings if its own do not load.

    `identity` is its configuration file, `running` are the processes that serve, `errors` those of processes that gave
    no answer, `dead` the sockets of those that have ended; `is_port_taken` if any process listens
    on the port of its settings.
    """

    paths: Paths
    identity: str
    surroundings: Surroundings
    running: Sequence[ProcessStatus] = ()
    errors: Sequence[str] = ()
    dead: Sequence[Path] = ()
    is_port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Examined:
    """Findings of the gateway on its servers."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class StartedCase(SettingsCase):
    """A gateway that has `waited` so many seconds for its servers, with what each wrote to stderr since.

    `rows` are the status of its servers, `silent` those that have never listed their tools; `exceeded` has the schemas
    that took too much in calls, by digest.
    """

    state: GatewayState
    trust_gate: TrustGate
    upstreams: Mapping[str, Upstream]
    rows: Sequence[JsonObject]
    silent: Sequence[str]
    surroundings: Surroundings
    exceeded: Mapping[str, str]
    last_words: Callable[[str], tuple[str, ...]]
    waited: float
    is_indexed: bool
