"""Does anything get past the gateway, or bring it down, that is bent or broken in a million ways?

    python -m benchmarks.run_fuzz [--requests 800000] [--times 100] [--connections 8] [--seed 1] [--json]

Requests go over HTTP to a gateway process with real stdio servers behind it, from a client with few rights: bodies,
headers, names, URIs and plans that are bent on purpose or broken at random. Its server, `benchmarks.fuzz.vault`, opens
everything to everybody; what the client may not have carries a token that is searched for in every answer.
Properties of the test suite are tried so many times as often as there. Exit code 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.verdict import Check
from benchmarks.client import Era, open_client
from benchmarks.fuzz.inputs import HOSTS, ORIGINS, Inputs, Request, opening
from benchmarks.fuzz.wire import Reply, Wire
from benchmarks.processes import REPOSITORY, Running, new_path, resident_mib, running
from benchmarks.results import save

ANSWER_SECONDS = 20.0
"""A gateway that answers later than this hangs; calls of the vault take a millisecond."""

LOOKS = 10
"""How often the owner's own call must give what is right, meanwhile and at the end."""

SESSION_REQUESTS = 500
"""After which a connection opens a new session and forgets the old one."""

MEMORY_GROWTH = 0.25
KEPT = 5


@dataclass(slots=True)
class Seen:
    """What requests were answered with."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    slowest: float = 0.0
    rss_mib: list[float] = field(default_factory=list)

    def note(self, fault: str, request: Request, reply: Reply | None) -> None:
        """Keep one of the first few that show a fault."""
        kept = self.faults.setdefault(fault, [])
        if len(kept) < KEPT:
            answer = "" if reply is None else f" -> {reply.status} {reply.body[:300]!r}"
            kept.append(f"{request.verb} {request.path} {request.headers} {request.body[:600]!r}{answer}")


def _configuration(folder: Path) -> Path:
    path = folder / "config.yaml"
    vault = {"command": sys.executable, "args": ["-m", "benchmarks.fuzz.vault"], "cwd": str(REPOSITORY)}
    denied = ["vault:open", "vault:combination", "file:///srv/private/*"]
    settings = {
        "servers": {"vault": {**vault, "env": {"VAULT_TOKEN": "${env:VAULT_TOKEN}"}}},
        "clients": {"guest": {"key": "${env:GUEST_KEY}", "deny": denied}, "owner": {"key": "${env:OWNER_KEY}"}},
        "activity": {"record": False},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return path


def judge(request: Request, reply: Reply, token: bytes, seen: Seen) -> None:
    """Note what must never be in an answer, or be one."""
    seen.statuses[reply.status] += 1
    if reply.status == 0:
        seen.note("closed without an answer", request, reply)
    elif reply.status >= 500 and reply.status not in (501, 503):
        seen.note("server error", request, reply)
    if token in reply.body:
        seen.note("told what is denied", request, reply)
    if b"Traceback" in reply.body:
        seen.note("traceback in an answer", request, reply)
    foreign = request.headers.get("host") in HOSTS or request.headers.get("origin") in ORIGINS
    if foreign and reply.status < 400:
        seen.note("foreign host or origin let in", request, reply)


async def _fuzz(url: str, arguments: argparse.Namespace, guest: str, token: bytes, seen: Seen) -> None:
    """All connections until their share of the requests is sent."""
    each = -(-arguments.requests // arguments.connections)

    async def connection(number: int) -> None:
        inputs, wire = Inputs(arguments.seed * 1000 + number), Wire(url, guest)
        session_id, ended = "", False
        for sent in range(each):
            if sent % SESSION_REQUESTS == 0 or ended:
                session_id = (await wire.send(opening())).session_id
            request = inputs.next(session_id)
            started = time.perf_counter()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    reply = await wire.send(request)
            except TimeoutError:
                seen.note("no answer in time", request, None)
            else:
                judge(request, reply, token, seen)
                ended = reply.status == 404 or request.verb == "DELETE"
            seen.slowest = max(seen.slowest, time.perf_counter() - started)
        wire.close()

    async with asyncio.TaskGroup() as group:
        for number in range(arguments.connections):
            group.create_task(connection(number))


async def _watch(url: str, gateway: Running, arguments: argparse.Namespace, owner: str, token: str, seen: Seen) -> None:
    """Meanwhile, the owner gets what is right, from the first to the last request."""
    sent = 0
    for look in range(1, LOOKS + 1):
        while sent < arguments.requests * look / LOOKS * (1 - 1 / LOOKS):
            await asyncio.sleep(0.05)
            sent = sum(seen.statuses.values()) + len(seen.faults.get("no answer in time", []))
        await _look(url, owner, token, seen)
        seen.rss_mib.append(round(resident_mib(gateway.pid), 1))


async def _look(url: str, owner: str, token: str, seen: Seen) -> None:
    async with open_client(url, Era.STATELESS) as client:
        client.headers["authorization"] = f"Bearer {owner}"
        answer = await client.request("tools/call", {"name": "vault__open", "arguments": {}})
        if answer.result()["content"] != [{"type": "text", "text": token}]:
            seen.faults.setdefault("the owner got a wrong answer", []).append(answer.body.decode()[:500])


async def requests(arguments: argparse.Namespace, log: Path) -> tuple[Seen, float]:
    """Fuzz one gateway process; what was seen, and the seconds it took."""
    guest, owner, token = (secrets.token_hex(16) for _ in range(3))
    seen = Seen()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        config = _configuration(Path(name))
        env = {"PML_HOME": f"{name}/home", "GUEST_KEY": guest, "OWNER_KEY": owner, "VAULT_TOKEN": token}
        command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", "0", "--config", str(config)]
        async with running(command, env=env, log=log) as gateway:
            url = f"{gateway.origin}/mcp"
            await _look(url, owner, token, seen)
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                group.create_task(_fuzz(url, arguments, guest, token.encode(), seen))
                group.create_task(_watch(url, gateway, arguments, owner, token, seen))
            seconds = time.perf_counter() - started
            await _look(url, owner, token, seen)
    return seen, seconds


def check_requests(seen: Seen, log: str, expected: int) -> list[Check]:
    """Whether everything holds."""
    answered = sum(seen.statuses.values())
    first, last = seen.rss_mib[len(seen.rss_mib) // 3], seen.rss_mib[-1]
    tracebacks = log.count("Traceback (most recent call last)")
    checks = [
        Check("every request was answered", answered >= expected, f"{answered:,} of {expected:,}"),
        Check("no traceback in the log", not tracebacks, f"{tracebacks} found"),
        Check("memory does not grow", last <= first * (1 + MEMORY_GROWTH), f"{first} to {last} MiB"),
    ]
    faults = [
        Check(f"not: {fault}", holds=False, found=f"{len(examples)} kept") for fault, examples in seen.faults.items()
    ]
    return [*checks, *(faults or [Check("nothing told, let in or broken", holds=True, found=f"{answered:,} answers")])]


PROPERTIES = (
    *("tests/policy/test_uris.py", "tests/policy/test_hostile_names.py", "tests/exposure/test_patterns.py"),
    *("tests/trust/test_lint.py", "tests/trust/test_admission.py", "tests/catalog/test_hidden_characters.py"),
    *(
        "tests/test_foreign_json.py",
        "tests/test_hosts.py",
        "tests/test_text.py",
        "tests/upstreams/auth/test_addresses.py",
    ),
    *("tests/catalog/test_schema.py", "tests/catalog/test_prompts_and_resources.py", "tests/results/test_paths.py"),
    *("tests/workflow/test_properties.py", "tests/cli/test_arguments.py", "tests/gateway/test_request.py"),
)
"""What of the test suite takes in what others wrote: names, URIs, rules, texts, schemas, expressions, plans."""

_TRIED = re.compile(r"- (\d+) passing, (\d+) failing, and (\d+) invalid test cases")


def check_properties(times: int) -> list[Check]:
    """The suite's properties of what comes from outside, each tried so many times as often."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-show-statistics"]
    run = subprocess.run(
        [*command, "--timeout=0", "--property-times", str(times), *PROPERTIES],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    tried = [sum(map(int, found)) for found in _TRIED.findall(run.stdout)]
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    what = "; ".join(failed)[:400] or f"{sum(tried):,} inputs for {len(tried)} properties"
    return [Check("every property holds", run.returncode == 0 and bool(tried), what)]


def run(arguments: argparse.Namespace) -> bool:
    """Run, print, save; whether everything holds."""
    with tempfile.TemporaryDirectory(prefix="fuzz-log-") as name:
        log = arguments.log or Path(name) / "gateway.log"
        seen, seconds = asyncio.run(requests(arguments, log))
        checks = check_requests(seen, log.read_text(encoding="utf-8", errors="replace"), arguments.requests)
    if arguments.times:
        checks += check_properties(arguments.times)
    measured: dict[str, Any] = {
        "holds": all(check.holds for check in checks),
        "checks": [asdict(check) for check in checks],
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "requests_per_second": round(arguments.requests / seconds, 1),
        "slowest_seconds": round(seen.slowest, 2),
        "rss_mib": seen.rss_mib,
        "faults": seen.faults,
    }
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        for check in checks:
            print(f"{'holds ' if check.holds else 'BROKEN'}  {check.what}: {check.found}")
        print(f"\nstatuses {measured['statuses']}, slowest {measured['slowest_seconds']} s, memory {seen.rss_mib} MiB")
        for fault, examples in seen.faults.items():
            print(f"\n{fault}:", *examples, sep="\n  ")
    if not arguments.no_save:
        plan = {name: getattr(arguments, name) for name in ("requests", "times", "connections", "seed")}
        print(save("fuzz", plan, measured), file=sys.stderr)
    return bool(measured["holds"])


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="Does anything get past the gateway, or bring it down?")
    parser.add_argument("--requests", type=int, default=800_000)
    parser.add_argument("--times", type=int, default=100, help="how often each property is tried; 0 for none")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same requests")
    parser.add_argument("--log", type=new_path, help="keep what the gateway writes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print only")
    sys.exit(0 if run(parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
