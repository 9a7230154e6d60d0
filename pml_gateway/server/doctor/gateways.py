"""Control sockets and the port become findings about the gateways that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pml_gateway import __version__
from pml_gateway.config.settings import HttpSettings
from pml_gateway.counting import counted
from pml_gateway.server.doctor.finding import Area, Finding, Severity
from pml_gateway.server.doctor.ports import Listener
from pml_gateway.types import JsonObject


def gateways(
    answers: Sequence[JsonObject], dead: Sequence[Path], http: HttpSettings, listener: Listener | None
) -> Iterator[Finding]:
    """What runs, what is left of what ran, and who has the port."""
    running = [answer for answer in answers if "error" not in answer]
    for answer in answers:
        if "error" in answer:
            fix = "if it goes on, stop that process and start it again"
            yield Finding(Area.GATEWAYS, Severity.WARNING, "", str(answer["error"]), fix)
    for answer in running:
        yield _running(answer)
    for path in dead:
        yield Finding(
            Area.GATEWAYS,
            Severity.WARNING,
            str(path),
            "a control socket whose gateway has ended",
            f"rm {path}",
            repair=_removing(path),
        )
    yield _port(running, http, listener)


def _removing(path: Path) -> Callable[[], None]:
    return partial(path.unlink, missing_ok=True)


def _running(answer: JsonObject) -> Finding:
    what = f"runs: mode {answer['mode']}, {counted(answer['tools'], 'tool')}"
    subject = f"gateway {answer['pid']}"
    if answer["version"] == __version__:
        return Finding(Area.GATEWAYS, Severity.OK, subject, what)
    what += f", version {answer['version']} and not {__version__}"
    return Finding(Area.GATEWAYS, Severity.WARNING, subject, what, "stop it and start it again")


def _port(running: Sequence[JsonObject], http: HttpSettings, listener: Listener | None) -> Finding:
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
        "for `pml serve --http`, stop that or choose another: --port N, or http.port in the configuration",
    )
