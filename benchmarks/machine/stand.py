"""A machine of its own: a home, a configuration with scripted servers, places to start clients in, its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from benchmarks.client import Era
from benchmarks.figures import parent_of
from benchmarks.machine.client import MachineClient, Person, start_client
from benchmarks.processes import alone_option
from pml_gateway.processes.children import Children, open_children

SERVER = Path(__file__).with_name("server.py")
COMMAND_SECONDS = 90.0
GONE_SECONDS = 10.0
POLL_SECONDS = 0.05
LIBRARY = "onnxruntime_pybind11_state"
"""What a process has mapped that holds the model; the model itself is read, not mapped."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client is started, and with what."""

    name: str
    folder: Path
    token: str = "token"
    path: str = os.environ.get("PATH", os.defpath)
    era: Era = Era.HANDSHAKE
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """What is measured: the `pml` of an environment, attaching or alone."""

    name: str
    program: Path
    options: tuple[str, ...] = ()


def attaching() -> Side:
    """The tree under test, as a client starts it."""
    return Side("after", Path(sys.executable).with_name("pml"))


def alone(environment: Path | None = None) -> Side:
    """A gateway for each client: of another environment, or of the tree under test."""
    program = (environment / "bin" if environment else Path(sys.executable).parent) / "pml"
    return Side("before", program, alone_option(str(program)))


@dataclass(slots=True)
class Stand:
    """What one side runs in; everything in it names the folder in its command line or environment."""

    side: Side
    folder: Path
    servers: Mapping[str, Mapping[str, Any]]
    tasks: anyio.abc.TaskGroup
    children: Children
    clients: list[MachineClient] = field(default_factory=list)
    _seen: dict[int, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def log(self) -> Path:
        """What bridges and gateways write to stderr."""
        return self.folder / "log"

    def environment(self, place: Place) -> dict[str, str]:
        """What a desktop or a shell would start a client's servers with."""
        return {
            "PATH": place.path,
            "HOME": str(self.folder / "user"),
            "LANG": "C.UTF-8",
            "PML_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "TOKEN": place.token,
        }

    def write_config(self, **sections: Any) -> None:
        """The configuration that every client's gateway reads."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.folder / "user").mkdir(exist_ok=True)
        settings = {"servers": dict(self.servers), **sections}
        (self.home / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")

    async def start(self, place: Place, person: Person | None = None) -> MachineClient:
        """A client in this place, before its first message."""
        command = [str(self.side.program), "serve", *self.side.options, *place.options]
        client = await start_client(
            self.tasks,
            place.name,
            command,
            folder=place.folder,
            environment=self.environment(place),
            version=place.era,
            person=person,
            log=self.log,
        )
        self.children.began(client.pid)
        self.clients.append(client)
        return client

    async def open(self, place: Place, person: Person | None = None) -> MachineClient:
        """A client that has shaken hands."""
        client = await self.start(place, person)
        await client.open()
        return client

    async def leave(self, client: MachineClient) -> None:
        """The client ends, and its process with it."""
        try:
            await client.leave()
        finally:
            self._forget(client)

    async def kill(self, client: MachineClient) -> None:
        """Its process ends without a word."""
        client.kill()
        await client.process.wait()
        self._forget(client)

    async def pml(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        run = subprocess.run
        place = Place("owner", folder or self.folder)
        command = [str(self.side.program), *arguments]
        return await anyio.to_thread.run_sync(
            lambda: run(
                command,
                cwd=place.folder,
                env=self.environment(place),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        )

    def processes(self) -> dict[int, str]:
        """The processes of this stand and what each is: bridge or gateway, server, helper of a gateway."""
        needle = str(self.folder).encode()
        own = {client.pid for client in self.clients}
        running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        commands = {
            pid: command
            for pid in running
            if pid != os.getpid() and (command := _command_naming(pid, needle)) is not None
        }
        # A gateway's helpers are started with an empty environment, so they are found by their parent.
        for pid in running:
            if pid not in commands and parent_of(pid) in commands:
                commands[pid] = _read(pid, "cmdline")
        roles = {}
        for pid, command in commands.items():
            if pid in own:
                roles[pid] = "client"
            elif str(SERVER).encode() in command or b"pml_gateway.demo.servers" in command:
                roles[pid] = "server"
            elif b"orphan_reaper" in command or parent_of(pid) in commands.keys() - own:
                roles[pid] = "helper"
            else:
                roles[pid] = "gateway"
        self._seen |= {pid: _started(pid) for pid in roles}
        return roles

    def gateways(self) -> list[int]:
        """The gateways: those that were started detached, else the clients' processes themselves."""
        roles = self.processes()
        found = [pid for pid, role in roles.items() if role == "gateway"]
        return found or [pid for pid, role in roles.items() if role == "client" and maps_model_library(pid)]

    def server_processes(self) -> Counter[str]:
        """How many processes each server has."""
        found: Counter[str] = Counter()
        for server_id in self.servers:
            found[server_id] = len(self.server_pids(server_id))
        return found

    def server_pids(self, server_id: str) -> list[int]:
        """The processes of one server."""
        path = self.folder / "servers" / server_id / "pids"
        started = path.read_text(encoding="ascii").split() if path.exists() else []
        return [pid for pid in map(int, started) if str(path.parent).encode() in _read(pid, "cmdline").split(b"\0")]

    def journal(self) -> Counter[tuple[str, str]]:
        """How often each nonce was executed by which tool."""
        lines: list[str] = []
        for path in (self.folder / "servers").glob("*/journal"):
            lines += path.read_text(encoding="ascii").splitlines()
        return Counter((nonce, what) for nonce, what in (line.split() for line in lines))

    async def end(self) -> list[str]:
        """Let every client leave, take the gateway down; what is left then is a fault, named and ended."""
        for client in list(self.clients):
            await self.leave(client)
        faults = []
        if self.gateways():
            done = await self.pml("down")
            if done.returncode:
                faults.append(f"pml down: exit code {done.returncode}: {done.stderr[-300:]}")
        deadline = time.monotonic() + GONE_SECONDS
        while alive := self._alive():
            if time.monotonic() > deadline:
                break
            await anyio.sleep(POLL_SECONDS)
        faults += [f"process {pid}: {command}" for pid, command in alive.items()]
        self.end_processes()
        return faults + [f"file {path.relative_to(self.home)}" for path in (self.home / "run").rglob("*")]

    def end_processes(self) -> None:
        """Kill whatever of this stand is still there."""
        for pid in self._alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _forget(self, client: MachineClient) -> None:
        self.children.ended(client.pid)
        if client in self.clients:
            self.clients.remove(client)

    def _alive(self) -> dict[int, str]:
        """Processes of this stand, also helpers whose gateway has gone."""
        self.processes()
        return {
            pid: _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
            for pid, started in self._seen.items()
            if started and _started(pid) == started
        }


@asynccontextmanager
async def open_stand(
    side: Side, folder: Path, servers: Callable[[Path], Mapping[str, Mapping[str, Any]]]
) -> AsyncIterator[Stand]:
    """A stand that ends with everything it started, whatever happens."""
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    with open_children() as children:
        async with anyio.create_task_group() as tasks:
            stand = Stand(side, folder, servers(folder), tasks, children)
            try:
                yield stand
            finally:
                with anyio.CancelScope(shield=True):
                    for client in list(stand.clients):
                        await stand.kill(client)
                    stand.end_processes()
                tasks.cancel_scope.cancel()


def scripted(folder: Path, server_id: str, *arguments: str, **entry: Any) -> dict[str, Any]:
    """The entry of a scripted server; its journal lies in a folder of its own."""
    own = folder / "servers" / server_id
    own.mkdir(parents=True, exist_ok=True)
    # Without site-packages Python starts in 30 ms and holds 9 MB.
    options = ["-S", "-E", str(SERVER), "--id", server_id, "--folder", str(own)]
    return {"command": sys.executable, "args": [*options, *arguments], **entry}


def maps_model_library(pid: int) -> bool:
    """Whether the process could hold a model."""
    return LIBRARY.encode() in _read(pid, "maps")


def proportional_mib(pid: int) -> float:
    """Memory of one process, with its share of what it has in common with others."""
    return _rollup(pid, b"Pss")


def own_mib(pid: int) -> float:
    """Resident memory of one process."""
    return _rollup(pid, b"Rss")


def cpu_seconds(pid: int) -> float:
    """What one process has computed so far, without its children."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def total(pids: Sequence[int], figure: Callable[[int], float]) -> float:
    """Of several processes."""
    return sum(figure(pid) for pid in pids)


def _rollup(pid: int, name: bytes) -> float:
    for line in _read(pid, "smaps_rollup").splitlines():
        key, _, value = line.partition(b":")
        if key == name:
            return int(value.split()[0]) / 1024
    return 0.0


def _command_naming(pid: int, needle: bytes) -> bytes | None:
    command = _read(pid, "cmdline")
    if needle in command or needle in _read(pid, "environ"):
        return command
    return None


def _started(pid: int) -> str:
    """When it started, empty where it has ended."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return fields[19].decode() if fields and fields[0] != b"Z" else ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
