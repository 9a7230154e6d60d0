"""How long the console's pages take, how large they are, and how much open pages slow calls.

    python -m benchmarks.run_console [--rows 1000000] [--tools 1000] [--pairs 10] [--save]

The gateway is the one that clients share, with one server of so many tools; so many calls were recorded before, over
30 days. Each page is asked for several times, and the median counts. For the pairs, a client over stdio calls a tool
that answers what it was given, with three pages open in a process of its own and with none, in turns; each page loads
again when the gateway has changed, as in a browser. Answers are checked, and the ratio is that of the medians in each
pair.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2

from benchmarks.client import AnswerError, Era
from benchmarks.harness import table
from benchmarks.metrics import median, sign_test_interval
from benchmarks.processes import REPOSITORY, stop
from benchmarks.results import save
from benchmarks.run_activity import fill
from benchmarks.stdio_client import StdioClient, open_stdio_client
from benchmarks.synthetic import ECHO
from tests.support.process import environment

PML = (sys.executable, "-m", "pml_gateway")
SECONDS = 120
ROUNDS = 7
CALLS, WARM_UP_CALLS = 200, 20
PAUSE_SECONDS = 0.01
"""Seconds between two calls: nobody calls without a pause, and a page is to follow them for a while."""

OPEN_PAGES = ("overview", "activity", "servers")
PAGES = (
    "overview",
    "servers",
    "server?name=up",
    "lists",
    "tools",
    "tools?q=create+an+invoice",
    "waiting",
    "activity",
    "activity?client=client3&outcome=failed",
    "activity?text=tool_47",
    "activity?text=nothing+has+this",
    "activity?show=missed",
    "access?id={last}",
    "settings",
)
_TOPICS = re.compile(r'data-live="([a-z ]*)"')


@contextmanager
def console(home: Path, tools: int) -> Iterator[str]:
    """A running console in front of a server with so many tools; yields its link."""
    server = {"command": sys.executable, "args": ["-m", "benchmarks.synthetic", "--tools", str(tools)]}
    # The oldest calls of a full record would be deleted while it is measured.
    settings = {"servers": {"up": {**server, "cwd": str(REPOSITORY)}}, "activity": {"max_bytes": 2**30}}
    (home / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    command = [*PML, "console", "--no-open", "--json"]
    env = environment(home) | {"PML_LOCAL__ATTACH": "true"}
    with subprocess.Popen(command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()
            subprocess.run([*PML, "down"], env=env, capture_output=True, timeout=SECONDS, check=False)


def pages(client: httpx2.Client, root: str, last: int) -> list[dict[str, Any]]:
    """The milliseconds and bytes of each page; `last` is the last recorded call."""
    found = []
    for path in (each.format(last=last) for each in PAGES):
        taken = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            answer = client.get(root + path)
            taken.append((time.perf_counter() - began) * 1000)
        if answer.status_code not in (200, 404):
            raise AnswerError(f"{path}: {answer.status_code} {answer.text[:500]}")
        if answer.status_code == 200:
            found.append({"page": path, "first_ms": taken[0], "ms": median(taken[1:]), "bytes": len(answer.content)})
    return found


async def follow(root: str, cookie: str) -> None:
    """Keep pages open, and load each again as its script does, until this process is ended."""
    async with httpx2.AsyncClient(headers={"Cookie": cookie}, timeout=None) as client:

        async def keep(path: str) -> None:
            shown = _TOPICS.search((await client.get(root + path)).text)
            topics = set(shown[1].split()) if shown else set()
            async with client.stream("GET", f"{root}events") as events:
                async for line in events.aiter_lines():
                    if line.startswith("retry"):
                        print(path, flush=True)
                    if line.startswith("data: ") and topics & set(line[6:].split()):
                        await client.get(root + path)

        async with anyio.create_task_group() as tasks:
            for path in OPEN_PAGES:
                tasks.start_soon(keep, path)


@contextmanager
def open_pages(root: str, cookie: str) -> Iterator[None]:
    """Three open pages in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.run_console", "--follow", root, cookie]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        for _ in OPEN_PAGES:
            process.stdout.readline()
        yield
    finally:
        stop(process)


async def calls(client: StdioClient, count: int) -> float:
    """The median milliseconds of so many calls, whose answers are checked."""
    taken = []
    for number in range(count):
        payload = f"{number} " * 20
        began = time.perf_counter()
        answer = await client.request("tools/call", {"name": f"up__{ECHO}", "arguments": {"payload": payload}})
        taken.append((time.perf_counter() - began) * 1000)
        if answer["content"][0]["text"] != payload:
            raise AnswerError(json.dumps(answer)[:500])
        await anyio.sleep(PAUSE_SECONDS)
    return median(taken)


async def pairs(home: Path, root: str, cookie: str, count: int) -> list[dict[str, float]]:
    """Calls without and with open pages, in turns."""
    rows = []
    env = environment(home) | {"PML_LOCAL__ATTACH": "true"}
    async with open_stdio_client([*PML, "serve"], Era.HANDSHAKE, env) as client:
        await calls(client, WARM_UP_CALLS)
        # In the first pair, the gateway still does what it does after a start; it does not count.
        for pair in range(count + 1):
            row: dict[str, float] = {}
            for side in ("closed", "open") if pair % 2 else ("open", "closed"):
                if side == "open":
                    with open_pages(root, cookie):
                        row[side] = await calls(client, CALLS)
                else:
                    row[side] = await calls(client, CALLS)
            rows.append({"pair": pair, **row, "ratio": row["open"] / row["closed"]})
    return rows[1:]


def main() -> None:
    """Measure, and print and save what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tools", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--follow", nargs=2, metavar=("ROOT", "COOKIE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.follow:
        anyio.run(follow, *given.follow)
        return
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        fill(home / "activity.db", given.rows, str(home / "config.yaml"))
        with console(home, given.tools) as link, httpx2.Client(timeout=SECONDS, follow_redirects=True) as client:
            root = str(client.get(link).url)
            cookie = "; ".join(f"{each.name}={each.value}" for each in client.cookies.jar)
            shown = pages(client, root, given.rows)
            print(table(shown))
            rows = anyio.run(pairs, home, root, cookie, given.pairs) if given.pairs else []
    measured: dict[str, Any] = {"pages": shown}
    if rows:
        print(table(rows))
        ratios = [row["ratio"] for row in rows]
        measured |= {"pairs": rows, "ratio": median(ratios), "interval": sign_test_interval(ratios)}
        print(f"\nratio {measured['ratio']:.3f}, 95 % interval {measured['interval']}")
    if given.save:
        save("console", {"rows": given.rows, "tools": given.tools, "calls": CALLS, "open": len(OPEN_PAGES)}, measured)


if __name__ == "__main__":
    main()
