"""How much longer one client's calls take while another client sends all that it can.

python -m benchmarks.run_flood [--connections 32] [--calls 300] [--limit 600]

The flood runs in a process of its own, over so many connections, each of which sends its next call at once. `--limit`
gives the flooding client `calls_per_minute`, so that nearly all of its calls are refused.

`flood_calls` are the flood's calls for each of the other client: they depend less than times on what else the machine
does.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import Client, Era, open_client
from benchmarks.harness import table
from benchmarks.metrics import percentile
from benchmarks.processes import running
from benchmarks.results import save

KEYS = {"quiet": "key-of-the-quiet-client", "flood": "key-of-the-flooding-client"}
WARM_UP_CALLS = 20
READY_SECONDS = 60
WARM_UP_SECONDS = 2.0
CALL = {"name": "sleepy__sleep", "arguments": {"milliseconds": 0, "text": "x"}}


def settings(limit: int | None) -> dict[str, Any]:
    """The configuration of the gateway."""
    clients: dict[str, Any] = {name: {"key": f"${{env:{name.upper()}}}"} for name in KEYS}
    if limit is not None:
        clients["flood"]["limits"] = {"calls_per_minute": limit}
    return {
        "servers": {"sleepy": {"command": sys.executable, "args": ["-m", "benchmarks.sleepy"]}},
        "clients": clients,
        "http": {"port": 0},
        "log": {"level": "warning"},
    }


async def times(client: Client, calls: int) -> list[float]:
    """The seconds of calls one after another, whose answers are checked."""
    series = []
    for _ in range(calls):
        answer = await client.request("tools/call", CALL)
        assert answer.result()["content"][0]["text"] == "x", answer.result()
        series.append(answer.seconds)
    return series


async def flood(url: str, connections: int, count: Path) -> None:
    """Call without a pause until this process is ended, and write down how often."""
    calls = 0

    async def send() -> None:
        nonlocal calls
        async with open_client(url, Era.STATELESS) as client:
            client.headers["authorization"] = f"Bearer {KEYS['flood']}"
            while True:
                await client.request("tools/call", CALL)
                calls += 1
                note(count, calls)

    async with anyio.create_task_group() as tasks:
        for _ in range(connections):
            tasks.start_soon(send)


def note(file: Path, calls: int) -> None:
    """Write down how often the flood has called."""
    # Without cutting it, as another process reads it meanwhile.
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(struct.pack("q", calls))


def counted(file: Path) -> int:
    """The calls that the flood has made."""
    content = file.read_bytes()
    return int(struct.unpack("q", content)[0]) if len(content) == struct.calcsize("q") else 0


async def measured(connections: int, calls: int, limit: int | None) -> list[dict[str, Any]]:
    """One row without and one with the flood."""
    with tempfile.TemporaryDirectory() as folder:
        config = anyio.Path(folder, "config.yaml")
        await config.write_text(json.dumps(settings(limit)), encoding="utf-8")
        env = {"PML_HOME": folder, **{name.upper(): key for name, key in KEYS.items()}}
        command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--config", str(config)]
        async with running(command, env=env) as gateway:
            url = f"{gateway.origin}/mcp"
            async with open_client(url, Era.STATELESS) as client:
                client.headers["authorization"] = f"Bearer {KEYS['quiet']}"
                for _ in range(READY_SECONDS):
                    if not (await client.request("tools/call", CALL)).result().get("isError"):
                        break
                    await anyio.sleep(1)
                await times(client, WARM_UP_CALLS)
                alone = await times(client, calls)
                count = Path(folder, "count")
                note(count, 0)
                options = ("--flood", url, "--connections", str(connections), "--count", str(count))
                async with await anyio.open_process(
                    [sys.executable, "-m", "benchmarks.run_flood", *options], stdout=None, stderr=None
                ) as flooding:
                    try:
                        for _ in range(READY_SECONDS):
                            if counted(count):
                                break
                            await anyio.sleep(1)
                        await anyio.sleep(WARM_UP_SECONDS)
                        before = counted(count)
                        beside = await times(client, calls)
                        flood_calls = (counted(count) - before) / calls
                        assert flooding.returncode is None, "the flood ended"
                    finally:
                        flooding.kill()
    rows: list[dict[str, Any]] = []
    for name, series, more in (("alone", alone, 0.0), ("beside the flood", beside, flood_calls)):
        p50, p99 = (percentile(series, at) * 1000 for at in (50, 99))
        ratio = p99 / (percentile(alone, 99) * 1000)
        row = {"limit": limit or "none", "client": name, "p50_ms": p50, "p99_ms": p99, "x_p99": ratio}
        rows.append({**row, "flood_calls": more})
    return rows


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    if arguments.flood:
        await flood(arguments.flood, arguments.connections, arguments.count)
        return
    rows = []
    for limit in (None, arguments.limit):
        rows += await measured(arguments.connections, arguments.calls, limit)
    print(table(rows))
    if arguments.save:
        print(save("flood", {"connections": arguments.connections, "calls": arguments.calls}, {"flood": rows}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="How much one client's flood slows another client.")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--limit", type=int, default=600, help="calls_per_minute of the flooding client")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--flood", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
