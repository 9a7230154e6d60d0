"""Doctor: the gateways that run, and the port that they listen on."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

from pml_gateway import __version__
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.settings import HttpSettings
from pml_gateway.reports.doctor.cases import MachineCase
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
    yield _port(case.running, case.settings.http, is_port_taken=case.is_port_taken)


def _running(answer: ProcessStatus) -> Finding:
    what = f"runs: mode {answer['mode']}, {counted(answer['tools'], 'tool')}"
    subject = f"gateway {answer['pid']}"
    if answer["version"] == __version__:
        return Finding(Area.GATEWAYS, Severity.OK, subject, what)
    what += f", version {answer['version']} and not {__version__}"
    return Finding(Area.GATEWAYS, Severity.WARNING, subject, what, "stop it and start it again")


def is_taken(http: HttpSettings) -> bool:
    """Return True if any process listens on the port of these settings."""
    if http.port == 0:
        return False
    host = http.host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, http.port))
        except OSError:
            return True
    return False


def _port(running: Sequence[ProcessStatus], http: HttpSettings, *, is_port_taken: bool) -> Finding:
    subject = f"{http.host}:{http.port}"
    if http.port == 0:
        return Finding(Area.GATEWAYS, Severity.OK, http.host, "any free port is taken (http.port is 0)")
    if not is_port_taken:
        return Finding(Area.GATEWAYS, Severity.OK, subject, "the port is free")
    for answer in running:
        if answer["url"] and urlsplit(answer["url"]).port == http.port:
            return Finding(Area.GATEWAYS, Severity.OK, subject, f"served by gateway {answer['pid']}")
    return Finding(
        Area.GATEWAYS,
        Severity.WARNING,
        subject,
        "the port is taken by another process",
        "for `pml up --http`, stop that or choose another: --port N, or http.port in the configuration",
    )
