"""Doctor's checks of the gateway that this machine's clients share, and of files left by earlier gateways."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pml_gateway import __version__
from pml_gateway.clients.own import pml_command
from pml_gateway.config.findings import Area, Finding, Severity, from_error
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError
from pml_gateway.files import lock_file
from pml_gateway.installation import is_newer
from pml_gateway.local.commands import ask
from pml_gateway.local.endpoint import Endpoint, UnsafeEndpointError, drop_lock
from pml_gateway.local.machine import STARTS
from pml_gateway.owner.operations import STATUS
from pml_gateway.reports.status import ProcessStatus, clients_in_words
from pml_gateway.serve.reload import APPLIED
from pml_gateway.storage.places import obstacle
from pml_gateway.text import counted, shortened, span
from pml_gateway.types import JsonObject

ANSWER_SECONDS = 5.0
"""Time limit in seconds for the gateway to answer a check."""

LOG_BYTES = 64 * 1024
"""Bytes at the end of the log that are searched for current errors."""

OF_THEIR_OWN = "each client over stdio has a gateway of its own"

PROCESSES = "processes of servers"

MAX_LINE = 200
MAX_LINES = 3

_NAME = re.compile(r"(gateway-[0-9a-f]{12})\.(?:attach|start|life|failure|\d+\.new)")
_ERROR = re.compile(r'^\S+ ERROR |"level": ?"error"')


def health(endpoint: Endpoint, settings: Settings) -> Iterator[Finding]:
    """Yield findings on the gateway's state, its servers with several processes, and its obstacles. Blocking."""
    try:
        machine = ask(endpoint, STATUS, ANSWER_SECONDS)
    except GatewayError as error:
        yield _unreachable(error)
        machine = None
    else:
        yield _state(endpoint, machine, is_wanted=settings.local.attach)
    for server in machine["servers"] if machine is not None else ():
        if len(server["processes"]) > 1:
            yield _several(server)
    yield from _failure(endpoint)
    yield from _left(endpoint)
    yield from _logged(Path(endpoint.log))


def _state(endpoint: Endpoint, machine: ProcessStatus | None, *, is_wanted: bool) -> Finding:
    if machine is None and is_wanted:
        for folder in (Path(endpoint.folder), Path(endpoint.log).parent):
            if reason := obstacle(folder):
                what = f"not running, and no client can start it, as {folder} cannot be written ({reason})"
                return Finding(Area.MACHINE, Severity.NOTE, "", f"{what}: {OF_THEIR_OWN}")
        return Finding(Area.MACHINE, Severity.OK, "", "not running; the first client over stdio starts it")
    if machine is None:
        what = f"local.attach is false: {OF_THEIR_OWN}, with servers of its own"
        return Finding(Area.MACHINE, Severity.NOTE, "", what, "remove local.attach, and they share one")
    subject = f"gateway {machine['pid']}"
    size = [f"{machine['memory_bytes'] / 1e6:,.0f} MB"] if machine["memory_bytes"] else []
    runs = ["runs", f"for {span(machine['age_seconds'])}", *size, clients_in_words(machine)]
    what = ", ".join(runs)
    if is_newer(machine["version"], __version__):
        what += f"; its version is {machine['version']}, and this pml is older: {__version__}"
        return Finding(Area.MACHINE, Severity.WARNING, subject, what, f"upgrade {shlex.join(pml_command())}")
    if machine["version"] != __version__:
        what += f"; its version, {machine['version']}, is older than this pml, {__version__}"
        return Finding(Area.MACHINE, Severity.WARNING, subject, what, "pml restart")
    if not is_wanted:
        what += "; local.attach is false, and clients that start from now on do not use it"
        return Finding(Area.MACHINE, Severity.NOTE, subject, what, "pml down")
    return Finding(Area.MACHINE, Severity.OK, subject, "; ".join(filter(None, (what, _saved(machine)))))


def _saved(machine: ProcessStatus) -> str:
    """Return what sharing saves compared with a gateway for each client; "" for a single client."""
    clients = machine["clients"]
    if len(clients) < 2:
        return ""
    gateways = len(clients) - 1
    shared = [(each.get("clients", 0) - 1, each) for server in machine["servers"] for each in server["processes"]]
    shared = [(spared, each) for spared, each in shared if spared > 0]
    spared_memory = [
        gateways * (machine["memory_bytes"] or 0),
        *(spared * (each.get("memory_bytes") or 0) for spared, each in shared),
        # The bridges that clients start instead.
        *(-(client.get("memory_bytes") or 0) for client in clients),
    ]
    processes = sum(spared for spared, _ in shared)
    saved = f"sharing saves {counted(gateways, 'gateway')} and {counted(processes, 'process of a server', PROCESSES)}"
    return f"{saved}, about {sum(spared_memory) / 1e6:,.0f} MB" if machine["memory_bytes"] else saved


def _unreachable(error: GatewayError) -> Finding:
    if isinstance(error.__cause__, UnsafeEndpointError):
        what = f"{error.message}; until then {OF_THEIR_OWN}"
        return Finding(Area.MACHINE, Severity.WARNING, "", what)
    return from_error(Area.MACHINE, error)


def _several(server: JsonObject) -> Finding:
    processes = server["processes"]
    whose = tuple(
        f"{each['pid']}: for {each['for']}" + (f"; {why}" if (why := each.get("why")) else "") for each in processes
    )
    return Finding(
        Area.MACHINE,
        Severity.OK,
        server["server"],
        f"has {counted(len(processes), 'process', 'processes')}",
        details=whose,
    )


def _failure(endpoint: Endpoint) -> Iterator[Finding]:
    """Yield a finding if the last start failed; the next successful start removes its record."""
    try:
        told = json.loads(Path(endpoint.failure).read_bytes())
        yield Finding(Area.MACHINE, Severity.WARNING, "", f"its last start failed: {told['message']}", told["hint"])
    except (OSError, ValueError, LookupError, TypeError):
        return


def _left(endpoint: Endpoint) -> Iterator[Finding]:
    """Yield a note for each killed gateway, of any configuration, that left files; its successor would replace them."""
    folder = Path(endpoint.folder)
    try:
        names = sorted({found[1] for path in folder.iterdir() if (found := _NAME.fullmatch(path.name))})
    except OSError:
        return
    for name in names:
        each = Endpoint(str(folder.parent), name)
        if each.living() is None and not _is_starting(each) and (left := _files(each)):
            what = f"left by a gateway that was killed: {', '.join(path.name for path in left)}"
            fix = f"rm {' '.join(map(str, left))}"
            yield Finding(Area.MACHINE, Severity.NOTE, "", what, fix, repair=partial(_clear, each))


def _is_starting(endpoint: Endpoint) -> bool:
    lock = lock_file(endpoint.start_lock)
    if lock is not None:
        drop_lock(endpoint.start_lock, lock)
    return lock is None


def _files(endpoint: Endpoint) -> Sequence[Path]:
    """Return the files left by an ended gateway; `.failure` has its own finding, and the next gateway needs `.up`."""
    name = Path(endpoint.life_lock).stem
    found = Path(endpoint.folder).glob(f"{name}.*")
    return sorted(path for path in found if path.suffix not in (".failure", ".up"))


def _clear(endpoint: Endpoint) -> None:
    life = endpoint.take_life()
    if life is None:
        return
    for path in _files(endpoint):
        path.unlink(missing_ok=True)
    endpoint.leave(life)
    os.close(life)


def _logged(log: Path) -> Iterator[Finding]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return
    # Errors from before the last start or reload are either fixed or logged again.
    begins = max((at for at, line in enumerate(lines) if STARTS in line or APPLIED in line), default=0)
    errors = [*dict.fromkeys(shortened(line, MAX_LINE) for line in lines[begins:] if _ERROR.search(line))]
    if errors:
        what = f"{counted(len(errors), 'error')} in its log {log}, the last of them:"
        yield Finding(Area.MACHINE, Severity.NOTE, "", what, "", tuple(errors[-MAX_LINES:]))
