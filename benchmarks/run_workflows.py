"""How long several calls in one request take, against the time their tools need.

    python -m benchmarks.run_workflows [--runs 9] [--quick]

A diamond of four 200 ms steps has three layers, so that its tools need 600 ms; fifty 100 ms calls, ten at a time, need
500 ms. The upstream sleeps and nothing else, so that what is left is the gateway's. Every answer is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import AnswerError, Era
from benchmarks.harness import table
from benchmarks.metrics import summary
from benchmarks.processes import REPOSITORY, alone_option
from benchmarks.results import save
from benchmarks.stdio_client import StdioClient, open_stdio_client

DIAMOND_MILLISECONDS = 200
CALL_MILLISECONDS = 100
CALLS = 50
PARALLEL = 10
LIMITS = {"diamond": 0.75, "batch": 0.7}
"""Seconds that have to be enough."""

READY_SECONDS = 60


def write_config(folder: Path) -> Path:
    """One sleeping upstream that takes as many calls as the batch makes at a time."""
    server = {"command": sys.executable, "args": ["-m", "benchmarks.sleepy"], "cwd": str(REPOSITORY)}
    settings = {
        "servers": {"sleepy": {**server, "max_concurrent": PARALLEL}},
        "workflow": {"max_steps": CALLS, "max_parallel": PARALLEL},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return config


async def diamond(client: StdioClient, turn: int) -> float:
    """Seconds of one step, two that need it, and one that needs both."""

    def step(name: str, *needed: str) -> dict[str, Any]:
        arguments = {"milliseconds": DIAMOND_MILLISECONDS, "text": f"{name}{turn}", "after": [f"${n}" for n in needed]}
        return {"id": name, "tool": "sleepy__sleep", "arguments": arguments}

    steps = [step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c")]
    seconds, answer = await _timed(client, "execute_workflow", {"steps": steps})
    results = [each.get("result") for each in answer["steps"]]
    if answer["status"] != "completed" or results != [f"{name}{turn}" for name in "abcd"]:
        raise AnswerError(f"not what was asked for: {json.dumps(answer)[:500]}")
    return seconds


async def batch(client: StdioClient, turn: int) -> float:
    """Seconds of fifty independent calls, ten at a time."""
    texts = [f"{number} of {turn}" for number in range(CALLS)]
    arguments = [{"milliseconds": CALL_MILLISECONDS, "text": text} for text in texts]
    calls = [{"name": "sleepy__sleep", "arguments": each} for each in arguments]
    seconds, answer = await _timed(client, "call_batch", {"calls": calls, "max_parallel": PARALLEL})
    if [slot.get("result") for slot in answer["slots"]] != texts:
        raise AnswerError(f"not what was asked for: {json.dumps(answer)[:500]}")
    return seconds


async def single(client: StdioClient, turn: int) -> float:
    """Seconds of one call by name, for what a round trip costs."""
    arguments = {"milliseconds": CALL_MILLISECONDS, "text": f"single {turn}"}
    begun = time.perf_counter()
    result = await client.request("tools/call", {"name": "sleepy__sleep", "arguments": arguments})
    seconds = time.perf_counter() - begun
    if result["content"][0]["text"] != arguments["text"]:
        raise AnswerError(f"not what was asked for: {json.dumps(result)[:500]}")
    return seconds


async def _timed(client: StdioClient, name: str, arguments: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    begun = time.perf_counter()
    result = await client.request("tools/call", {"name": name, "arguments": arguments})
    seconds = time.perf_counter() - begun
    answer: dict[str, Any] = result["structuredContent"]
    if result.get("isError"):
        raise AnswerError(json.dumps(answer)[:500])
    return seconds, answer


async def measure(runs: int, eras: list[Era]) -> list[dict[str, Any]]:
    """One row for each question and era."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="pml-") as name:
        folder = Path(name)
        program = (sys.executable, "-m", "pml_gateway")
        command = [*program, "serve", *alone_option(*program), "--config", str(write_config(folder))]
        for era in eras:
            async with open_stdio_client(command, era, {"PML_HOME": str(folder / "home")}) as client:
                with anyio.fail_after(READY_SECONDS):
                    await single(client, -1)
                questions = (
                    ("single call", single, CALL_MILLISECONDS / 1000, None),
                    ("diamond of 4 x 200 ms", diamond, 3 * DIAMOND_MILLISECONDS / 1000, LIMITS["diamond"]),
                    ("50 x 100 ms, 10 at a time", batch, CALLS * CALL_MILLISECONDS / PARALLEL / 1000, LIMITS["batch"]),
                )
                for question, work, needed, limit in questions:
                    seconds = summary([await work(client, turn) for turn in range(runs)])
                    row = {"question": question, "era": era.value, "runs": seconds["count"], "tools_need_s": needed}
                    rows.append({**row, "p50_s": seconds["p50"], "max_s": seconds["max"], "limit_s": limit})
    return rows


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    rows = await measure(1 if arguments.quick else arguments.runs, arguments.eras)
    print(table(rows))
    if not arguments.no_save and not arguments.quick:
        print(save("workflows", {"runs": arguments.runs, "transport": "stdio"}, {"workflows": rows}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="How long several calls in one request take.")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--eras", nargs="+", type=Era, choices=list(Era), default=list(Era))
    parser.add_argument("--quick", action="store_true", help="one run: shows that it works, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    with suppress(KeyboardInterrupt):
        anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
