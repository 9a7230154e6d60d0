"""Doctor: the Redis server that several gateways share."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity
from pml_gateway.errors import ConfigurationError, SharedStateError
from pml_gateway.storage.redis import (
    NO_SUCH_DATABASE,
    NOT_SAVED,
    OTHER_TYPE,
    REFUSED_LOGIN,
    UNKNOWN_HOST,
    UNTRUSTED_CERTIFICATE,
    RedisServer,
    open_redis,
)
from pml_gateway.storage.redis_url import check_shared_storage
from pml_gateway.storage.replicas import EXPIRY_SECONDS, Replica, living_replicas
from pml_gateway.text import span

OLDEST = (6, 2)
"""Oldest version with all commands that are used: GETDEL came with it."""

SLOW_SECONDS = 0.01
"""Time of one command that makes calls with a limit noticeably slower."""

MAX_CLOCK_SECONDS = 2.0
"""Difference of clocks that shifts the end of approvals, keys and tasks; those of machines with NTP differ by less."""

PINGS = 5

REPLICA_SECONDS = 2.0
"""Time in which a replica has to answer another one."""

_NUMBERS = re.compile(r"\d+")

_REMEDIES = {
    REFUSED_LOGIN: "correct the user and password of storage.url",
    NO_SUCH_DATABASE: "correct the number at the end of storage.url",
    UNTRUSTED_CERTIFICATE: "name the host of its certificate in storage.url, and its authority: ?ssl_ca_certs=PATH",
    UNKNOWN_HOST: "correct the host of storage.url",
    "its user may not do that": "give its user all commands on its keys: ACL SETUSER NAME ~{pml}:* +@all",
    OTHER_TYPE: "give pml a database of its own: redis://host/1",
    NOT_SAVED: "free its disk, or look into its log",
    "it has no memory left": "give it more memory: maxmemory",
    "it is a replica of Redis that only reads": "name the primary in storage.url",
}


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts of a Redis server; `info` and `save` are its own, None if its user may not ask for them."""

    info: Mapping[str, Any] | None
    save: str | None
    seconds: float
    clock_difference: float
    replicas: Sequence[tuple[Replica, str]] = ()
    """Those that serve HTTP, each with the reason why it is not reached from here; empty if it is."""
    ages: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the last heartbeats of replicas whose clocks differ from that of this machine, by their ids."""


def storage(case: SettingsCase) -> Iterator[Finding]:
    """Check the Redis server of `storage.url`, if there is one."""
    section = case.settings.storage
    try:
        check_shared_storage(section.url, section.key, case.environ)
    except ConfigurationError:
        # Told with the settings.
        return
    if section.url is None:
        return
    try:
        facts = anyio.run(_facts, section.url, section.key, case.environ)
    except ConfigurationError as error:
        yield Finding(Area.STORAGE, Severity.ERROR, "storage.url", error.message, error.hint)
    except _FailedServerError as error:
        fix = _REMEDIES.get(str(error), "is it running, and does storage.url name it (rediss:// for TLS)?")
        yield Finding(Area.STORAGE, Severity.ERROR, "storage.url", f"Redis at {error.address} fails: {error}", fix)
    else:
        yield from findings_of(facts)


class _FailedServerError(Exception):
    """A Redis server fails; the text says why."""

    def __init__(self, reason: str, address: str) -> None:
        super().__init__(reason)
        self.address = address


async def _facts(url: str, key: str | None, environ: Mapping[str, str]) -> RedisFacts:
    async with open_redis(url, key, environ) as server:
        assert server is not None
        try:
            return await _read(server)
        except SharedStateError as error:
            raise _FailedServerError(server.health.failure, server.address) from error


async def _read(server: RedisServer) -> RedisFacts:
    seconds = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await server.run(lambda redis: redis.ping())
        seconds.append(time.perf_counter() - began)
    latency = statistics.median(seconds)
    whole, micro = await server.run(lambda redis: redis.time())
    difference = whole + micro / 1e6 - (time.time() - latency / 2)
    info: Mapping[str, Any] | None = None
    save = None
    # Many providers do not let everybody ask.
    with suppress(SharedStateError):
        info = await server.run(lambda redis: redis.info("everything"))
        save = str((await server.run(lambda redis: redis.config_get("save"))).get("save", ""))
    living = await living_replicas(server)
    serving = [each for each, _ in living if each.url is not None]
    ages = {each.id: age for each, age in living if abs(age) > EXPIRY_SECONDS + MAX_CLOCK_SECONDS}
    problems = dict.fromkeys((each.id for each in serving), "")
    # As replicas ask each other: no proxy, no variables.
    async with (
        httpx2.AsyncClient(timeout=httpx2.Timeout(REPLICA_SECONDS), trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):

        async def reach(replica: Replica) -> None:
            try:
                await client.get(f"{replica.url}/healthz")
            except httpx2.ConnectError:
                problems[replica.id] = "nothing answers there"
            except httpx2.TimeoutException:
                problems[replica.id] = f"no answer in {REPLICA_SECONDS:g} s"
            except httpx2.TransportError:
                problems[replica.id] = "what answers there is not a gateway"

        for each in serving:
            tasks.start_soon(reach, each)
    replicas = [(each, problems[each.id]) for each in serving]
    return RedisFacts(info, save, latency, difference, replicas, ages)


def findings_of(facts: RedisFacts) -> Iterator[Finding]:
    """Judge the facts of a server."""
    info = facts.info or {}

    def found(severity: Severity, what: str, fix: str) -> Finding:
        return Finding(Area.STORAGE, severity, "storage.url", what, fix)

    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "")
    yield Finding(
        Area.STORAGE, Severity.OK, "storage.url", f"{name} {version} answers in {facts.seconds * 1000:.1f} ms"
    )
    if facts.info is None:
        what = "its user may not run INFO, so that its version and memory are not checked"
        yield found(Severity.NOTE, what, "let it: ACL SETUSER NAME +info")
    numbers = tuple(map(int, _NUMBERS.findall(version)[:2]))
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield found(Severity.ERROR, f"version {version} has not all commands", f"use {oldest} or later, or Valkey")
    if info.get("role") == "slave":
        yield found(Severity.ERROR, "it is a replica of Redis that only reads", "name the primary in storage.url")
    policy = str(info.get("maxmemory_policy") or "noeviction")
    if policy != "noeviction" and info.get("maxmemory") != 0:
        what = f"maxmemory-policy is {policy}: if its memory is full, approvals, tasks and results vanish unnoticed"
        yield found(Severity.WARNING, what, "set maxmemory-policy noeviction, for which calls go on as without Redis")
    if facts.seconds > SLOW_SECONDS:
        what = f"it takes {facts.seconds * 1000:.0f} ms to answer, for which calls with a limit wait"
        yield found(Severity.WARNING, what, "run it in the same network as the gateways")
    clocks = {"storage.url": facts.clock_difference} if abs(facts.clock_difference) > MAX_CLOCK_SECONDS else {}
    clocks |= {f"replica {id_}": age for id_, age in facts.ages.items()}
    for whose, difference in clocks.items():
        what = f"its clock and that of this machine differ by {span(abs(difference))}"
        yield Finding(Area.STORAGE, Severity.WARNING, whose, what, "set the clocks of all machines by NTP")
    if info and not info.get("aof_enabled"):
        kept = {"": "nothing", None: "snapshots at most"}.get(facts.save, "snapshots only")
        what = f"it keeps {kept} on disk: if it crashes, approvals, tasks and results of before are lost"
        yield found(Severity.NOTE, what, "set appendonly yes if they should outlast that")
    if facts.replicas:
        yield from _of_replicas(facts.replicas)


def _of_replicas(replicas: Sequence[tuple[Replica, str]]) -> Iterator[Finding]:
    """Check that replicas are set alike, and reached where they say."""
    urls = Counter(replica.url for replica, _ in replicas)
    versions = Counter(replica.version for replica, _ in replicas).most_common()
    configurations = Counter(replica.configuration for replica, _ in replicas).most_common()
    for replica, problem in replicas:
        about = f"replica {replica.id}"
        differs = ""
        if replica.version != versions[0][0]:
            differs = f"version {replica.version}"
        elif replica.configuration != configurations[0][0]:
            differs = "another configuration"
        if differs:
            what = f"at {replica.url} has {differs} than the other replicas"
            yield Finding(Area.STORAGE, Severity.WARNING, about, what, "give all replicas the same")
        if problem or urls[replica.url] > 1:
            what = f"is not reached at {replica.url}: {problem or 'another replica gives the same address'}"
            fix = "set its http.advertise to a URL by which the other replicas reach it"
            yield Finding(Area.STORAGE, Severity.WARNING, about, what, fix)
