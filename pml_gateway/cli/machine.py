"""Output of `pml status` for this machine's shared gateway: itself, its clients, its servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pml_gateway import __version__
from pml_gateway.cli.output import print_table, say, say_wrapped, whole
from pml_gateway.installation import is_newer
from pml_gateway.text import shortened, span
from pml_gateway.types import JsonObject

FOLDER_COLUMNS = 22
NAME_COLUMNS = 22

EVERYBODY = "everybody"

_STARTED = {"up": "until pml down", "service": "started at login", "client": "started by a client"}


def show_machine(machine: JsonObject) -> None:
    """Print how it is."""
    say_wrapped(_in_words(machine))


def show_clients_and_servers(machine: JsonObject) -> None:
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


def version_of(gateway: JsonObject, remedy: str) -> str:
    """Return a gateway's version, and if it is older or newer than this `pml`: a newer one is better left alone."""
    version = gateway["version"]
    if version == __version__:
        return f"version {version}"
    if is_newer(version, __version__):
        return f"version {version} (this pml is older: {__version__})"
    return f"version {version} (older than this pml, {__version__}: {remedy})"


def _in_words(machine: JsonObject) -> str:
    # The reports take 0.2 s to import.
    from pml_gateway.reports.status import clients_in_words

    parts = [
        f"gateway of this machine {machine['pid']}",
        version_of(machine, "pml restart"),
        *([machine["url"]] if machine.get("url") else []),
        *([f"nothing over HTTP: {machine['not_listening']}"] if machine.get("not_listening") else []),
        whole(f"for {span(machine['age_seconds'])}"),
        _STARTED.get(machine["started_by"], machine["started_by"]),
        *([whole(_size(machine["memory_bytes"]))] if machine.get("memory_bytes") else []),
        *map(whole, clients_in_words(machine).split(", ")),
    ]
    return ", ".join(parts)


def _client_row(client: JsonObject) -> Sequence[object]:
    return (
        shortened(client["name"] or "not known yet", NAME_COLUMNS),
        client["pid"],
        short_folder(client["folder"]),
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
    """Yield the processes that are not simply everybody's."""
    for server in servers:
        for each in server["processes"]:
            if each["for"] != EVERYBODY or len(server["processes"]) > 1:
                kind, _, whose = each["for"].partition(" ")
                shown = f"{kind} {short_folder(whose)}" if kind == "folder" else each["for"]
                size = _size(each["memory_bytes"]) if each.get("memory_bytes") else ""
                yield server["server"], each["pid"], size, shown, each.get("why") or ""


def whose(row: JsonObject) -> list[str]:
    """For whom a server is so, where it is not so for all clients of a gateway: folders, or clients of one folder."""
    return row.get("clients") or [short_folder(folder) for folder in row.get("folders", ())]


def short_folder(path: str) -> str:
    """Return a folder as people write it; of a long one the end, which tells it from others."""
    home = str(Path.home())
    shown = f"~{path.removeprefix(home)}" if path == home or path.startswith(f"{home}/") else path
    if len(shown) <= FOLDER_COLUMNS:
        return shown
    end = shown[1 - FOLDER_COLUMNS :]
    return f"…{end[max(end.find('/'), 0) :]}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
