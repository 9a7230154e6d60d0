"""The processes of one run: Redis, servers, replicas, and haproxy in front of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2

from benchmarks.client import Era, open_client
from benchmarks.cluster.server import NEW, OLD
from benchmarks.processes import REPOSITORY, PeerError, running
from pml_gateway.processes.children import Children, open_children
from tests.support.balancers import adapted
from tests.support.listening import free_port
from tests.support.redis_server import RealRedis, real_redis

READY_SECONDS = 60.0
STORAGE_KEY = "a random text of all replicas, long enough"
REPLICA = "gateway"
"""The beginning of the name of each, as the load balancer calls it."""

SERVED_BY = "x-replica"
"""The header in which haproxy says which replica answered."""

HOLD_SECONDS = 2
"""Seconds that a call waits for its approval: longer than a prompt owner takes, and short enough to wait for."""

DRAIN_SECONDS = 4
"""Longer than the load balancer takes to notice that a replica is not ready: two checks, a second apart."""

HAPROXY_RUNS = re.compile(r"(Loading success)")

RULE = {"match": {"effect": "destructive"}, "do": "ask"}


def client_key(client: str) -> str:
    """Return the key of a client."""
    return f"the key of {client}, long enough"


@dataclass
class Replica:
    """One gateway process, which is started again at the same port."""

    name: str
    port: int
    home: Path
    config: Path
    log: Path
    environment: Mapping[str, str]
    children: Children
    process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        """The address that it listens on."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.config)],
                cwd=REPOSITORY,
                env={**_bare_environment(), **self.environment, "PML_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.children.began(self.process.pid)

    def send(self, sent: signal.Signals) -> None:
        """Signal the process."""
        assert self.process is not None
        os.kill(self.process.pid, sent)

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self.process is not None
        code = await anyio.to_thread.run_sync(self.process.wait, READY_SECONDS)
        self.children.ended(self.process.pid)
        return code

    async def ready(self) -> float:
        """Wait until it says that it is ready; return the seconds that took."""
        begun = time.monotonic()
        async with httpx2.AsyncClient(trust_env=False, timeout=2) as http:
            while time.monotonic() < begun + READY_SECONDS:
                with suppress(httpx2.HTTPError):
                    if (await http.get(f"{self.origin}/readyz")).status_code == 200:
                        return time.monotonic() - begun
                await anyio.sleep(0.05)
        raise PeerError(f"{self.name} is not ready: {self.log.read_text(errors='replace')[-2000:]}")

    def close(self) -> None:
        """Kill the process."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(READY_SECONDS)
            self.children.ended(self.process.pid)


@dataclass
class Stand:
    """Everything that runs; `url` is where clients send to."""

    folder: Path
    url: str
    replicas: list[Replica]
    redis: RealRedis | None
    owner_token: str
    clients: list[str]
    spare_clients: list[str]
    """Clients beside those that take turns, as many as there are eras."""
    ledgers: list[Path] = field(default_factory=list)

    def executions(self, event: str) -> Counter[str]:
        """Count how often the servers noted an event, by the id of the call."""
        counts: Counter[str] = Counter()
        for path in self.ledgers:
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
                call, _, noted = line.partition(" ")
                counts[call] += noted == event
        return +counts

    def said(self) -> dict[str, int]:
        """Count the tracebacks and errors in the logs of the replicas."""
        logs = [replica.log.read_text(encoding="utf-8", errors="replace") for replica in self.replicas]
        return {"tracebacks": sum(log.count("Traceback") for log in logs)}


@asynccontextmanager
async def open_stand(
    folder: Path, *, clients: int, replicas: int, shared: bool, extra: Mapping[str, Any] | None = None
) -> AsyncIterator[Stand]:
    """Run servers and replicas; `shared` ones have a Redis server and haproxy in front of them.

    Args:
        folder: for everything that is written.
        clients: the number of clients with a key.
        replicas: the number of gateway processes.
        shared: False for one gateway as it is without Redis, reached directly.
        extra: sections of the configuration in addition to those of the stand.
    """
    await anyio.Path(folder).mkdir()
    names = [f"client-{number:02}" for number in range(clients + len(Era))]
    async with AsyncExitStack() as stack:
        children = stack.enter_context(open_children())
        redis = stack.enter_context(_redis(folder)) if shared else None
        servers, ledgers = {}, []
        for era in (NEW, OLD):
            ledger = folder / f"{era}.ledger"
            command = [sys.executable, "-m", "benchmarks.cluster.server", "--era", era, "--ledger", str(ledger)]
            process = await stack.enter_async_context(running(command))
            servers[era] = {"url": f"{process.origin}/mcp"}
            ledgers.append(ledger)
        settings = _settings(servers, names, shared=shared) | dict(extra or {})
        environment = {"STORAGE_KEY": STORAGE_KEY, **{_variable(name): client_key(name) for name in names}}
        if redis is not None:
            environment["REDIS"] = redis.url
        found = [_replica(folder, f"{REPLICA}{number}", settings, environment, children) for number in range(replicas)]
        token = _owner_token(found)
        for replica in found:
            stack.callback(replica.close)
            replica.start()
        for replica in found:
            await replica.ready()
        origin = found[0].origin
        if shared:
            origin = await stack.enter_async_context(_haproxy(folder, found))
        stand = Stand(folder, f"{origin}/mcp", found, redis, token, names[:clients], names[clients:], ledgers)
        await _knows_tools(stand)
        yield stand


def _settings(servers: Mapping[str, Any], clients: list[str], *, shared: bool) -> dict[str, Any]:
    storage = {"storage": {"url": "${env:REDIS}", "key": "${env:STORAGE_KEY}"}} if shared else {}
    return {
        "gateway": {"tools_exposure": "full_proxy"},
        "servers": dict(servers),
        "clients": {name: {"key": f"${{env:{_variable(name)}}}"} for name in clients},
        "rules": [RULE],
        "approvals": {"hold_seconds": HOLD_SECONDS, "notify": False},
        "limits": {"calls_per_day": 1_000_000},
        "http": {"drain_seconds": DRAIN_SECONDS},
        **storage,
    }


def _bare_environment() -> dict[str, str]:
    """Return the environment without settings of other gateways."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PML_")}


def _variable(client: str) -> str:
    return client.upper().replace("-", "_")


def _replica(
    folder: Path, name: str, settings: Mapping[str, Any], environment: Mapping[str, str], children: Children
) -> Replica:
    home = folder / name
    home.mkdir()
    config = home / "config.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return Replica(name, free_port(), home, config, folder / f"{name}.log", environment, children)


def _owner_token(replicas: list[Replica]) -> str:
    """Make a token of the owner at the first replica, and give its file to the others."""
    first = replicas[0]
    made = subprocess.run(
        [sys.executable, "-m", "pml_gateway", "keys", "add", "--owner", "--json", "--config", str(first.config)],
        env={**_bare_environment(), **first.environment, "PML_HOME": str(first.home), "PML_LOCAL__ATTACH": "false"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if made.returncode:
        raise PeerError(f"no token of the owner: {made.stderr[-500:]}")
    for other in replicas[1:]:
        with suppress(FileNotFoundError):
            shutil.copy(first.home / "keys.json", other.home / "keys.json")
    return str(json.loads(made.stdout)["key"])


@contextmanager
def _redis(folder: Path) -> Iterator[RealRedis]:
    program = next(filter(None, map(shutil.which, ("redis-server", "valkey-server"))), None)
    if program is None:
        raise PeerError("neither redis-server nor valkey-server is on PATH")
    data = folder / "redis"
    data.mkdir()
    with real_redis(Path(program), data) as redis:
        yield redis


@asynccontextmanager
async def _haproxy(folder: Path, replicas: list[Replica]) -> AsyncIterator[str]:
    program = shutil.which("haproxy")
    if program is None:
        raise PeerError("haproxy is not on PATH")
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(haproxy_config(port, replicas), encoding="utf-8")
    async with running(
        [program, "-W", "-f", str(config), "-db"], announcement=HAPROXY_RUNS, log=folder / "haproxy.log"
    ):
        yield f"http://127.0.0.1:{port}"


def haproxy_config(port: int, replicas: Sequence[Replica]) -> str:
    """Return the shipped configuration in front of these replicas; it also says which of them answered."""
    shipped = adapted("haproxy", port, [f"127.0.0.1:{replica.port}" for replica in replicas])
    return f"{shipped.rstrip()}\n    http-response set-header {SERVED_BY} %s\n"


async def _knows_tools(stand: Stand) -> None:
    """Wait until every replica lists the tools of both servers."""
    headers = {"authorization": f"Bearer {client_key(stand.clients[0])}"}
    with anyio.fail_after(READY_SECONDS):
        for replica in stand.replicas:
            async with open_client(f"{replica.origin}/mcp", Era.STATELESS, headers) as client:
                names: set[str] = set()
                while not {f"{NEW}__echo", f"{OLD}__echo"} <= names:
                    await anyio.sleep(0.1)
                    names = {each["name"] for each in (await client.request("tools/list")).result()["tools"]}
