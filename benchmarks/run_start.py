"""How soon a stdio gateway answers its first `tools/list`, with and without dead upstreams, and what it weighs.

    python -m benchmarks.run_start [--upstreams 20] [--faulty 5] [--quick]

Every upstream works while the manifest is made; then a file makes some of them dead or silent, so the configuration,
and with it the manifest, stays the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import AnswerError, Era
from benchmarks.harness import table
from benchmarks.metrics import summary
from benchmarks.processes import REPOSITORY, PeerError, alone_option, resident_mib
from benchmarks.results import save
from benchmarks.stdio_client import StdioClient, open_stdio_client

FULL_CATALOG_SECONDS = 240
"""Starting 20 Python upstreams takes a while on a small machine."""

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """A configuration with its home, the switch that makes some upstreams fail, and whose gateway is started."""

    folder: Path
    upstreams: int
    faulty: int
    tools_per_upstream: int
    python: str = sys.executable

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def switch(self) -> Path:
        return self.folder / "fail"

    @property
    def tools(self) -> int:
        return self.upstreams * self.tools_per_upstream

    def write_config(self) -> None:
        """All upstreams look alike; only the faulty ones look at the switch."""
        servers = {}
        for number in range(self.upstreams):
            arguments = ["--tools", str(self.tools_per_upstream), "--seed", str(number)]
            module = "benchmarks.synthetic"
            if number < self.faulty:
                module = "benchmarks.fickle"
                # More dead than hanging, as in life: three and two of five.
                arguments += ["--switch", str(self.switch), "--fault", "hang" if number % 2 else "dead"]
            servers[f"upstream{number}"] = {
                "command": sys.executable,
                "args": ["-m", module, *arguments],
                "cwd": str(REPOSITORY),
            }
        self.home.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yaml"
        config.write_text(json.dumps({"servers": servers}), encoding="utf-8")

    def break_some(self, broken: bool) -> None:
        """Turn the faults on or off for gateways started from now on."""
        if broken:
            self.switch.touch()
        else:
            self.switch.unlink(missing_ok=True)

    def forget(self) -> None:
        """A first start: no manifest, no caches."""
        shutil.rmtree(self.home)
        self.home.mkdir()

    def command(self, mode: str) -> list[str]:
        config = str(self.folder / "config.yaml")
        # -P, or the package in the working directory would come first.
        program = (self.python, "-P", "-m", "pml_gateway")
        return [*program, "serve", *alone_option(*program), "--config", config, "--mode", mode]

    def environment(self) -> dict[str, str]:
        return {"PML_HOME": str(self.home)}


async def first_list(scene: Scene, era: Era, *, complete: bool = True) -> dict[str, float]:
    """Start, list once; `complete` demands every tool."""
    async with open_stdio_client(scene.command("full_proxy"), era, scene.environment()) as client:
        listed = len((await client.request("tools/list"))["tools"])
        seconds = client.age
        if complete and listed != scene.tools:
            raise AnswerError(f"{listed} tools in the first list instead of {scene.tools}")
        return {"seconds": seconds, "tools": listed, "resident_mib": resident_mib(client.process.pid)}


async def fill_manifest(scene: Scene) -> float:
    """Let all upstreams work until every tool is listed; seconds it took."""
    async with open_stdio_client(scene.command("full_proxy"), Era.HANDSHAKE, scene.environment()) as client:
        deadline = time.monotonic() + FULL_CATALOG_SECONDS
        while (listed := len((await client.request("tools/list"))["tools"])) < scene.tools:
            if time.monotonic() > deadline:
                raise PeerError(f"{listed} of {scene.tools} tools after {FULL_CATALOG_SECONDS} s")
            await anyio.sleep(POLL_SECONDS)
        return client.age


async def searching(scene: Scene, era: Era) -> dict[str, float]:
    """Resident memory once the model has ranked every tool."""
    async with open_stdio_client(scene.command("meta_only"), era, scene.environment()) as client:
        await _search(client)
        first = client.age
        deadline = time.monotonic() + FULL_CATALOG_SECONDS
        while await _search(client) == "lexical":
            if time.monotonic() > deadline:
                raise AnswerError("no model was loaded; the memory would not be comparable")
            await anyio.sleep(POLL_SECONDS)
        await _search(client)
        return {"first_search_seconds": first, "resident_mib": resident_mib(client.process.pid)}


async def _search(client: StdioClient) -> str:
    """Search once; what ranked the hits. While 1,000 tools are encoded for the first time, words alone do."""
    arguments = {"query": "find a document and share it"}
    result = await client.request("tools/call", {"name": "search_tools", "arguments": arguments})
    structured = result.get("structuredContent") or {}
    if result.get("isError") or not any(isinstance(value, list) and value for value in structured.values()):
        raise AnswerError(f"search found nothing: {str(result)[:500]}")
    return str(structured.get("ranking", "fused"))


def row(what: str, era: Era, measured: list[dict[str, float]]) -> dict[str, Any]:
    """One line of the report."""
    seconds = summary([run["seconds"] for run in measured])
    return {
        "start": what,
        "era": era.value,
        "runs": seconds["count"],
        "p50_s": seconds["p50"],
        "max_s": seconds["max"],
        "tools": min(run["tools"] for run in measured),
        "resident_mib": max(run["resident_mib"] for run in measured),
    }


async def measure(scene: Scene, runs: int, eras: list[Era]) -> dict[str, Any]:
    """Cold starts with faults first, then warm ones with and without faults in turns."""
    rows = []
    for era in eras:
        cold = []
        for _ in range(max(1, runs // 3)):
            scene.forget()
            scene.break_some(True)
            cold.append(await first_list(scene, era, complete=False))
        rows.append(row("no manifest, faults", era, cold))
    scene.break_some(False)
    filled = await fill_manifest(scene)
    for era in eras:
        warm: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(runs):
            for broken in (False, True):
                scene.break_some(broken)
                warm[broken].append(await first_list(scene, era))
        rows += [row("warm, healthy", era, warm[False]), row("warm, faults", era, warm[True])]
    memory: dict[str, Any] = {"tools": scene.tools}
    try:
        await searching(scene, eras[0])  # computes and caches the vectors
        memory |= await searching(scene, eras[0])
    except (AnswerError, PeerError, TimeoutError) as exc:
        memory["problem"] = f"{type(exc).__name__}: {exc}"
    return {"starts": rows, "all_tools_after_seconds": filled, "search": memory}


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    runs, upstreams, faulty = arguments.runs, arguments.upstreams, arguments.faulty
    tools = arguments.tools_per_upstream
    if arguments.quick:
        runs, upstreams, faulty, tools = 1, 3, 2, 5
    with tempfile.TemporaryDirectory(prefix="pml-") as folder:
        scene = Scene(Path(folder), upstreams, faulty, tools)
        scene.write_config()
        measured = await measure(scene, runs, arguments.eras)
    print(table(measured["starts"]), json.dumps(measured["search"]), sep="\n\n")
    if not arguments.no_save and not arguments.quick:
        settings = {"runs": runs, "upstreams": upstreams, "faulty": faulty, "tools_per_upstream": tools}
        print(save("start", settings, measured))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="How soon a stdio gateway answers, and what it weighs.")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--upstreams", type=int, default=20)
    parser.add_argument("--faulty", type=int, default=5)
    parser.add_argument("--tools-per-upstream", type=int, default=50)
    parser.add_argument("--eras", nargs="+", type=Era, choices=list(Era), default=list(Era))
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    with suppress(KeyboardInterrupt):
        anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
