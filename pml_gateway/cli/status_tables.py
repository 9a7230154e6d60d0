"""Output of `pml status` and `pml upstreams`: gateways, their servers, and the clients of the shared one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pml_gateway import __version__
from pml_gateway.cli.output import print_table, printable, say, say_wrapped, warn, whole
from pml_gateway.config.findings import Finding
from pml_gateway.installation import is_newer
from pml_gateway.reports.status import (
    DISABLED,
    ProcessStatus,
    clients_in_words,
    command_for,
    in_words,
    need_of,
    storage_in_words,
)
from pml_gateway.text import counted, plural_of, quoted, shortened, some_of, span
from pml_gateway.types import JsonObject

FOLDER_COLUMNS = 22
NAME_COLUMNS = 22

EVERYBODY = "everybody"

_STARTED = {"up": "until pml down", "service": "started at login", "client": "started by a client"}


def show_machine(machine: ProcessStatus) -> None:
    """Print how it is."""
    say_wrapped(_in_words(machine))
    _show_storage(machine)


def show_clients_and_servers(machine: ProcessStatus) -> None:
    """Print a table of its clients, and one of its servers with the processes that need a reason."""
    if machine["clients"]:
        say()
        columns = ("client", "pid", "folder", "mode", "calls", "since")
        print_table(columns, [_client_row(client) for client in machine["clients"]])
    if machine["servers"]:
        say()
        columns = ("server", "state", "processes", "memory", "calls", "clients")
        print_table(columns, [_server_row(server) for server in machine["servers"]])
    if reasons := list(_reasons(machine["servers"])):
        say()
        print_table(("process of", "pid", "memory", "for", "why"), reasons)


def show_overview(overview: JsonObject) -> None:
    """Print what waits for the owner, the calls of the last hour and day, and the tokens of today."""
    for each in overview["waiting"]:
        say_wrapped(f"{printable(each['client'])} asks for {some_of(each['tools'])}: pml approvals show {each['id']}")
    if "calls_error" in overview:
        warn(overview["calls_error"])
        return
    spans = [
        f"{counted(told['calls'], 'call')} in the last {name}, {told['failed']:,} failed"
        + (f", {told['refused']:,} refused" if told["refused"] else "")
        for name, told in overview["calls"].items()
    ]
    say_wrapped("; ".join(spans))
    today = overview["today"]
    if today["lists"] or today["answered"]:
        saved = max(today["everything"] - today["listed"], 0)
        say_wrapped(
            f"tokens read today: {today['listed']:,} of {counted(today['lists'], 'list')}, {saved:,} fewer than with"
            f" everything listed; about {today['answered']:,} of answers"
        )


def show_gateway(report: ProcessStatus, identity: str, *, lists_replicas: bool = True) -> None:
    """Print a running gateway other than this machine's, and its configuration file if that is not `identity`.

    Gateways with the same replicas need only one list of them.
    """
    how = "shared over stdio" if report["transport"] == "machine" else report["transport"]
    age, clients = f"for {span(report['age_seconds'])}", counted(report["client_count"], "client")
    parts = [f"gateway {report['pid']}", _version_of(report, "start it anew"), report["url"] or how]
    parts += [whole(age), whole(clients)]
    if Path(report["config"]).is_absolute() and report["config"] != identity:
        parts.append(f"of {report['config']}")
    if report["is_ending"]:
        parts.append("it ends once its calls are done")
    mode = [f"mode {report['mode']}"] if report["mode"] else []
    say_wrapped(", ".join([*parts, *mode, whole(counted(report["tools"], "tool"))]))
    if lists_replicas:
        _show_storage(report)


def _show_storage(report: ProcessStatus) -> None:
    if "storage" not in report:
        return
    say_wrapped(storage_in_words(report["storage"]))
    replicas = report["storage"]["replicas"]
    if len(replicas) == 1:
        return
    say()
    columns = ("replica", "address", "for", "state")
    print_table(columns, [_replica_row(each) for each in replicas])
    if own := next(each["stdio_servers"] for each in replicas if each["is_this"]):
        servers = counted(own, "server")
        say_wrapped(f"{servers} over stdio {'runs' if own == 1 else 'run'} in each of {len(replicas)} replicas")


def _replica_row(replica: JsonObject) -> Sequence[object]:
    # A gateway of an earlier version does not say it.
    differs = replica.get("has_other_clock", False)
    states = [
        "this one" if replica["is_this"] else "",
        "its clock differs: pml doctor" if differs else "",
        "is ending" if replica["is_draining"] else "",
        "" if replica["version"] == __version__ else f"version {replica['version']}",
        "" if replica["is_configured_alike"] else "another configuration",
    ]
    shown = ", ".join(filter(None, states))
    if differs:
        return (replica["id"], "", "", shown)
    return (replica["id"], replica["url"] or "serves no HTTP", span(replica["age_seconds"]), shown)


def show_servers(reports: list[ProcessStatus]) -> None:
    """Print a table of all servers, each with its state and the command that helps."""
    servers = _servers(reports)
    are_told_apart = any(named for _, _, named in servers)
    columns = ("server", *(["for"] if are_told_apart else ()), "state", "what helps")
    rows = [
        (
            row["server"],
            *([named] if are_told_apart else ()),
            need.what if need else in_words(row),
            command_for(need) if need else f"pml enable {quoted(row['server'])}" if row["state"] == DISABLED else "",
        )
        for row, need, named in servers
    ]
    print_table(columns, rows)


def _servers(reports: list[ProcessStatus]) -> list[tuple[JsonObject, Finding | None, str]]:
    """Each server once for each thing that gateways say of it, those that need something first.

    The gateways are named where not all of them say the same; those of one process by the folders that they serve, or
    the clients.
    """
    found: dict[tuple[str, Finding | None], tuple[JsonObject, list[str]]] = {}
    for report in reports:
        for row in report["upstreams"]:
            named = _whose(row) or [f"gateway {report['pid']}"]
            found.setdefault((row["server"], need_of(row)), (row, []))[1].extend(named)
    said = [server for server, _ in found]
    listed = [
        (row, need, some_of(named, 1) if said.count(server) > 1 else "")
        for (server, need), (row, named) in found.items()
    ]
    return sorted(listed, key=lambda each: (each[1] is None, each[0]["state"] == DISABLED))


def show_upstreams(reports: list[ProcessStatus]) -> None:
    """Print a table of the servers of each report, with all that is known of them, and their errors."""
    for report in reports:
        if report["pid"] is not None:
            modes = report["mode"]
            named = [f"{plural_of(modes.count(',') + 1, 'mode')} {modes}"] if modes else []
            parts = [f"gateway {report['pid']}", *named, counted(report["tools"], "tool")]
            say(", ".join(parts), style="bold")
        are_told_apart = any(_whose(row) for row in report["upstreams"])
        kinds = (
            "tools",
            "prompts",
            "resources",
            *(["skills"] if any(row["skills"] for row in report["upstreams"]) else ()),
        )
        columns = ("state", "login", *kinds, "latency", "age")
        print_table(
            ("server", *(["for"] if are_told_apart else ()), *columns),
            (
                (
                    row["server"],
                    *([some_of(_whose(row))] if are_told_apart else ()),
                    _state(row, is_served=report["pid"] is not None),
                    _login(row),
                    *(row[kind] + (row["templates"] if kind == "resources" else 0) for kind in kinds),
                    "" if row["latency_seconds"] is None else f"{row['latency_seconds'] * 1000:.0f} ms",
                    "never" if row["age_seconds"] is None else span(row["age_seconds"]),
                )
                for row in report["upstreams"]
            ),
        )
        for warning in dict.fromkeys(warning for row in report["upstreams"] for warning in _warnings(row)):
            warn(warning)


def _warnings(row: JsonObject) -> Iterator[str]:
    if row["error"]:
        yield row["error"]
    if row.get("held_back"):
        yield f"{row['server']}: {counted(row['held_back'], 'definition')} held back; pml trust"
    if row.get("flagged"):
        yield f"{row['server']}: {counted(row['flagged'], 'accepted definition')} may be risky; pml trust list"


def _state(row: JsonObject, *, is_served: bool) -> str:
    breaker = row["breaker"]
    is_held_back = breaker["state"] != "closed" and row["state"] != "failed"
    notes = [
        "tools stale" if row["stale"] else "",
        f"calls {breaker['state'].replace('_', ' ')}" if is_held_back else "",
        # Only who goes on tries again.
        f"again in {breaker['retry_after_seconds']:.0f} s" if is_served and "retry_after_seconds" in breaker else "",
    ]
    return ", ".join([row["state"].replace("_", " "), *filter(None, notes)])


def _login(row: JsonObject) -> str:
    auth = row["auth"]
    match auth["state"]:
        case "logged_in" if auth["expires_at"] and not auth["renews"]:
            return f"logged in until {auth['expires_at']}"
        case "logged_in":
            return "logged in"
        case "login_needed":
            return "login needed"
        case "client_credentials":
            return "by client secret"
        case "headers":
            return "by header"
        case _:
            return "not needed"


def _version_of(gateway: ProcessStatus, remedy: str) -> str:
    """Return a gateway's version, and if it is older or newer than this `pml`: a newer one is better left alone."""
    version = gateway["version"]
    if version == __version__:
        return f"version {version}"
    if is_newer(version, __version__):
        return f"version {version} (this pml is older: {__version__})"
    return f"version {version} (older than this pml, {__version__}: {remedy})"


def _in_words(machine: ProcessStatus) -> str:
    parts = [
        f"gateway of this machine {machine['pid']}",
        _version_of(machine, "pml restart"),
        *([machine["url"]] if machine["url"] else []),
        *([f"nothing over HTTP: {machine['not_listening']}"] if machine["not_listening"] else []),
        whole(f"for {span(machine['age_seconds'])}"),
        _STARTED.get(machine["started_by"], machine["started_by"]),
        *([whole(_size(machine["memory_bytes"]))] if machine["memory_bytes"] else []),
        *map(whole, clients_in_words(machine).split(", ")),
    ]
    return ", ".join(parts)


def _client_row(client: JsonObject) -> Sequence[object]:
    return (
        shortened(client["name"] or "not known yet", NAME_COLUMNS),
        client["pid"],
        _short_folder(client["folder"]),
        client["mode"] or "",
        f"{client['calls']:,}",
        span(client["since_seconds"]),
    )


def _server_row(server: JsonObject) -> Sequence[object]:
    processes, failed = server["processes"], server.get("failed_clients", 0)
    return (
        server["server"],
        server["state"].replace("_", " ") + (f", failed for {failed}" if 0 < failed < server["clients"] else ""),
        len(processes),
        _size(sum(each.get("memory_bytes") or 0 for each in processes)) if processes else "",
        f"{server['calls']:,}",
        server["clients"],
    )


def _reasons(servers: Sequence[JsonObject]) -> Iterator[Sequence[object]]:
    """Yield the processes that not all clients share."""
    for server in servers:
        for each in server["processes"]:
            if each["for"] != EVERYBODY or len(server["processes"]) > 1:
                kind, _, whose = each["for"].partition(" ")
                shown = f"{kind} {_short_folder(whose)}" if kind == "folder" else each["for"]
                size = _size(each["memory_bytes"]) if each.get("memory_bytes") else ""
                yield server["server"], each["pid"], size, shown, each.get("why") or ""


def _whose(row: JsonObject) -> list[str]:
    """Return the folders, or clients of one folder, that a row is about; none if it is about all clients."""
    return row.get("clients") or [_short_folder(folder) for folder in row.get("folders", ())]


def _short_folder(path: str) -> str:
    """Return a folder as people write it; of a long one the end, which tells it from others."""
    home = str(Path.home())
    shown = f"~{path.removeprefix(home)}" if path == home or path.startswith(f"{home}/") else path
    if len(shown) <= FOLDER_COLUMNS:
        return shown
    end = shown[1 - FOLDER_COLUMNS :]
    return f"…{end[max(end.find('/'), 0) :]}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
