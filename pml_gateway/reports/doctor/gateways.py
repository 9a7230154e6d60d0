"""Doctor: the gateways that run, and the process that listens on the port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pml_gateway import __version__
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.settings import HttpSettings
from pml_gateway.reports.doctor.cases import MachineCase
from pml_gateway.reports.doctor.listener import Listener
from pml_gateway.reports.status import ProcessStatus
from pml_gateway.text import counted


def gateways(case: MachineCase) -> Iterator[Finding]:
    """Check running gateways, leftovers of earlier ones, and the HTTP port."""
    for error in case.errors:
        fix = "if it goes on, stop that process and start it again"
        yield Finding(Area.GATEWAYS, Severity.WARNING, "", error, fix)
    for answer in case.running:
        # The one that clients share is told for itself.
        if answer.get("transport") != "machine":
            yield _running(answer)
    for path in case.dead:
        yield Finding(
            Area.GATEWAYS,
            Severity.WARNING,
            str(path),
            "a socket whose gateway has ended",
            f"rm {path}",
            repair=partial(path.unlink, missing_ok=True),
        )
    yield _port(case.running, case.settings.http, case.listener)


def _running(answer: ProcessStatus) -> Finding:
    what = f"runs: mode {answer['mode']}, {counted(answer['tools'], 'tool')}"
    subject = f"gateway {answer['pid']}"
    if answer["version"] == __version__:
        return Finding(Area.GATEWAYS, Severity.OK, subject, what)
    what += f", version {answer['version']} and not {__version__}"
    return Finding(Area.GATEWAYS, Severity.WARNING, subject, what, "stop it and start it again")


def _port(running: Sequence[ProcessStatus], http: HttpSettings, listener: Listener | None) -> Finding:
    subject = f"{http.host}:{http.port}"
    if http.port == 0:
        return Finding(Area.GATEWAYS, Severity.OK, http.host, "any free port is taken (http.port is 0)")
    if listener is None:
        return Finding(Area.GATEWAYS, Severity.OK, subject, "the port is free")
    if listener.pid is not None and listener.pid in {answer["pid"] for answer in running}:
        return Finding(Area.GATEWAYS, Severity.OK, subject, f"served by gateway {listener.pid}")
    return Finding(
        Area.GATEWAYS,
        Severity.WARNING,
        subject,
        f"the port is taken by {listener}",
        "for `pml up --http`, stop that or choose another: --port N, or http.port in the configuration",
    )
