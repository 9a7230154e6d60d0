"""Doctor: the list of all checks, by what they need, and the examination that runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio.to_thread

from pml_gateway.config.findings import Check, Finding, run_checks
from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.processes.package_faults import remove
from pml_gateway.reports.doctor.cases import Examined, MachineCase, StartedCase
from pml_gateway.reports.doctor.clients import clients, long_names
from pml_gateway.reports.doctor.configuration import CONFIGURATION_CHECKS, LoadedCase, broken
from pml_gateway.reports.doctor.files import files, versions
from pml_gateway.reports.doctor.gateways import gateways, is_taken
from pml_gateway.reports.doctor.search import examples, index, manifest, model
from pml_gateway.reports.doctor.servers import resources, servers
from pml_gateway.reports.doctor.storage import storage
from pml_gateway.reports.doctor.tools import checked_shallowly, disabled, repairs, rules, trust
from pml_gateway.reports.status import Progress

MACHINE_CHECKS: tuple[Check[MachineCase], ...] = (gateways, files, versions)
"""Checks of files and processes around the gateway, whatever its configuration says."""

CONFIGURED_CHECKS: tuple[Check[MachineCase], ...] = (*MACHINE_CHECKS, clients, model, manifest, storage)
"""Checks of this machine for a gateway whose settings load."""

STARTED_CHECKS: tuple[Check[StartedCase], ...] = (
    servers,
    resources,
    rules,
    repairs,
    disabled,
    checked_shallowly,
    long_names,
    trust,
    index,
    examples,
)
"""Checks of servers that were started."""


async def examine(
    case: MachineCase, load: Callable[[], LoadedSettings], machine: Check[MachineCase], progress: Progress
) -> tuple[list[Finding], bool]:
    """Return what is found without servers, and True if there are servers to examine.

    A configuration that does not load leaves only what needs none to be looked at.

    Args:
        case: this machine.
        load: returns the settings.
        machine: checks the gateway that clients share.
        progress: told what is being done.
    """
    progress("reading the configuration")
    try:
        loaded = load()
    except ConfigurationError as error:
        settings, found, checks = case.settings, list(broken(error)), MACHINE_CHECKS
    else:
        settings, checks = loaded.settings, CONFIGURED_CHECKS
        case_of_settings = LoadedCase(settings, case.environ, loaded, case.paths, case.identity)
        found = run_checks(CONFIGURATION_CHECKS, case_of_settings)
    progress("looking at files, clients, ports and the embedding model")
    case = replace(case, settings=settings, is_port_taken=is_taken(settings.http))
    found += await anyio.to_thread.run_sync(run_checks, (machine, *checks), case)
    return found, any(definition.enabled for definition in settings.servers.values())


def with_repairs(examined: Examined) -> list[Finding]:
    """Return what a gateway found at its servers, with the repairs that are made outside of it."""
    return [
        replace(found, repair=partial(remove, Path(found.npx_folder))) if found.npx_folder else found
        for found in examined.findings
    ]
