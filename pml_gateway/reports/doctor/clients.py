"""Doctor: which MCP clients use the gateway."""

from __future__ import annotations

from collections.abc import Iterator

from pml_gateway.clients.discover import ClientStatus, client_files, client_status
from pml_gateway.clients.own import ENTRY_NAME, own_kind
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.settings import SHORTEST_NAME, Settings
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.doctor.cases import MachineCase, StartedCase
from pml_gateway.text import counted
from pml_gateway.types import ExposureMode

MAX_NAMED = 10
"""Names that one finding shows, the longest first."""


def clients(case: MachineCase) -> Iterator[Finding]:
    """Check which clients get their tools from the gateway, and what prevents others from it."""
    found = [client_status(file, case.settings.http) for file in client_files(case.surroundings)]
    # What is wrong with a file is wrong with all of its blocks.
    listed = [
        status
        for status in found
        if status.state not in ("absent", "empty") and not (status.file.problem and status.file.project)
    ]
    for status in listed:
        yield _finding(status, case.settings, is_serving_http=case.is_port_taken)
    readable = (status.file.client.name for status in listed if not status.file.problem)
    if not any(status.kind for status in listed):
        yield Finding(
            Area.CLIENTS,
            Severity.NOTE,
            "",
            "no client uses the gateway yet",
            f"pml connect {next(readable, 'CLIENT')}; pml clients lists them",
        )


def long_names(case: StartedCase) -> Iterator[Finding]:
    """Find names that are too long for a client that uses the gateway, with what it puts before them."""
    state, settings, view = case.state, case.settings, case.state.view(LOCAL)
    own = [tool.name for tool in state.meta_tools.enabled(settings)]
    names = [*own, *state.namespaces(view), *sorted(view.names)]
    for file in client_files(case.surroundings):
        rules = file.client.names
        if rules is None:
            continue
        for entry, raw in file.entries.items():
            room = rules.room(entry)
            too_long = [name for name in names if len(name) > room]
            if not too_long or own_kind(raw, settings.http) is None:
                continue
            yield Finding(
                Area.CLIENTS,
                Severity.WARNING,
                f"{file.client.name} ({file.scope})",
                f"{counted(len(too_long), 'name')} of tools would have more than {rules.longest} characters with "
                f"{rules.before(entry)!r} before them, and {rules.otherwise}",
                _shorter(entry, room),
                tuple(sorted(too_long, key=len, reverse=True)[:MAX_NAMED])
                + ((f"and {len(too_long) - MAX_NAMED} more",) if len(too_long) > MAX_NAMED else ()),
            )


def _shorter(entry: str, room: int) -> str:
    limit = f"set naming.max_length to {room} or less" if room >= SHORTEST_NAME else ""
    rename = f"call the entry {ENTRY_NAME!r}" if len(entry) > len(ENTRY_NAME) else ""
    return ", or ".join(filter(None, (rename, limit)))


def _finding(status: ClientStatus, settings: Settings, *, is_serving_http: bool) -> Finding:
    client = status.file.client
    subject = f"{client.name} ({status.file.scope})"
    connect = f"pml connect {client.name}{'' if status.file.scope == 'user' else f' --scope {status.file.scope}'}"
    others = counted(status.servers, "server")
    pins = settings.gateway.tools_exposure is not ExposureMode.FULL_PROXY
    severity, what, fix = Severity.OK, f"connected ({status.kind})", ""
    if status.problem:
        problem, _, remedy = status.problem.partition("; run ")
        severity, what, fix = Severity.ERROR, problem, remedy or f"correct {status.file.path}"
        if status.file.is_skipped:
            severity, what = Severity.WARNING, f"{status.file.path} {problem}"
            fix = "take it away, or put a regular file of your own there"
    elif status.state == "direct":
        severity, what, fix = Severity.NOTE, f"starts {others} itself, without the gateway", connect
    elif does := status.odd_loading(pins=pins):
        severity, what, fix = Severity.WARNING, f"connected, but it {does}", connect
    elif status.kind == "http" and not is_serving_http:
        address = f"{settings.http.host}:{settings.http.port}"
        severity, what = Severity.WARNING, f"connected by URL, and no gateway listens on {address}"
        fix = "pml up --http"
    elif status.state == "both":
        severity, what = Severity.NOTE, f"connected ({status.kind}), and starts {others} itself as well"
        fix = f"pml init --client {client.name}, then {connect}, which says what keeps the rest there"
    return Finding(Area.CLIENTS, severity, subject, what, fix)
