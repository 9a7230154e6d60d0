"""Which functions and files of the package one request enters on its way through the gateway.

    python -m benchmarks.run_way [--tree] [--json]

A warmed gateway in this process, its upstream and its client on streams in memory, in the handshake era. What the
request enters is noted while it is served, in the event loop and in threads: each start of a function with a name (a
coroutine that goes on is no start, comprehensions and lambdas are none), in the files of the package only. Of several
requests the one that entered least counts: the others met work that goes on beside requests. It is a report that shows
where a way is long; it says nothing about time.
"""

from __future__ import annotations

import argparse
import json
import opcode
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import mcp_types
from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp.shared.memory import create_client_server_memory_streams

import pml_gateway
from benchmarks.client import AnswerError
from benchmarks.harness import table
from benchmarks.peers import UPSTREAM, plain_text
from benchmarks.results import save
from benchmarks.synthetic import ECHO, build, synthetic_tools
from pml_gateway import LoadedSettings, Paths, Settings
from pml_gateway.serve.runtime import open_runtime
from tests.support.memory import in_memory

PACKAGE = Path(pml_gateway.__file__).parent
TOOLS = 20
WARM_UP_REQUESTS = 12
"""More than the first results of a tool, from each of which its shape is learned."""

SAMPLES = 5
READY_SECONDS = 60
POLL_SECONDS = 0.1
RESUME = opcode.opmap["RESUME"]
RESUME_KIND = 3
"""The bits of the instruction's argument that say whether a function starts (0) or goes on after a pause."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A function that was entered; `depth` counts the package's functions that it was entered from."""

    file: str
    function: str
    depth: int


class Recorder:
    """Notes which functions in the files of a folder are entered, in every thread that starts after it is made."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._entries: list[Entry] | None = None
        threading.setprofile(self._note)

    @contextmanager
    def recording(self) -> Iterator[list[Entry]]:
        """What is entered until the end of this context, in order."""
        entries: list[Entry] = []
        self._entries = entries
        sys.setprofile(self._note)
        try:
            yield entries
        finally:
            sys.setprofile(None)
            self._entries = None

    def close(self) -> None:
        """Let threads be that start from now on."""
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code, entries = frame.f_code, self._entries
        if entries is None or event != "call" or not self._is_ours(frame):
            return
        if code.co_name.startswith("<") or not _starts(frame):
            return
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += self._is_ours(outer)
            outer = outer.f_back
        name = code.co_qualname.replace("<locals>.", "")
        entries.append(Entry(code.co_filename.removeprefix(self._prefix), name, depth))

    def _is_ours(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._prefix)


def _starts(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at] == RESUME and code[at + 1] & RESUME_KIND == 0


def row(way: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """One line of the report."""
    return {
        "way": way,
        "functions": len({(entry.file, entry.function) for entry in entries}),
        "files": len({entry.file for entry in entries}),
        "calls": len(entries),
        "changes_of_file": sum(one.file != other.file for one, other in pairwise(entries)),
    }


def tree(entries: Sequence[Entry]) -> list[str]:
    """The way in order: a line a call, indented by depth; the same call several times in a row is one line."""
    lines = []
    for entry, group in groupby(entries):
        times = len(list(group))
        lines.append(f"{'  ' * entry.depth}{entry.file}: {entry.function}{f' x{times}' if times > 1 else ''}")
    return lines


async def list_tools(session: ClientSession) -> None:
    """The finished list, which is kept for the next client."""
    result = await session.send_request(mcp_types.ListToolsRequest(), mcp_types.ListToolsResult)
    if not any(tool.name == "search_tools" for tool in result.tools):
        raise AnswerError(f"search_tools is not listed among {[tool.name for tool in result.tools]}")


async def call_directly(session: ClientSession) -> None:
    """A tool by its name."""
    if plain_text(await _call(session, f"{UPSTREAM}__{ECHO}", {"payload": "x"})) != "x":
        raise AnswerError("the payload did not come back")


async def search(session: ClientSession) -> None:
    """A search that finds a tool, ranked by the model."""
    if not await _found(session):
        raise AnswerError("search found nothing, or words alone ranked")


async def run_step(session: ClientSession) -> None:
    """A workflow of one step."""
    steps = [{"id": "only", "tool": f"{UPSTREAM}__{ECHO}", "arguments": {"payload": "x"}}]
    answer = (await _call(session, "execute_workflow", {"steps": steps}))["structuredContent"]
    if [step.get("result") for step in answer["steps"]] != ["x"]:
        raise AnswerError(f"the payload did not come back: {json.dumps(answer)[:500]}")


WAYS: Mapping[str, Callable[[ClientSession], Awaitable[None]]] = {
    "direct call": call_directly,
    "cached list": list_tools,
    "search_tools": search,
    "workflow step": run_step,
}


async def _found(session: ClientSession) -> bool:
    """Whether the echo is found. While tools are encoded for the first time, words alone rank."""
    answer = (await _call(session, "search_tools", {"query": "return the payload unchanged"}))["structuredContent"]
    return answer.get("ranking") != "lexical" and any(hit["name"].endswith(ECHO) for hit in answer["hits"])


async def _call(session: ClientSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    # `session.call_tool` would list as well, to check the answer against the tool's schema.
    request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=name, arguments=arguments))
    result = await session.send_request(request, mcp_types.CallToolResult)
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


@asynccontextmanager
async def open_session() -> AsyncIterator[ClientSession]:
    """A client of a gateway in front of one upstream, all in memory; the model has ranked the tools."""
    settings = Settings.model_validate({"servers": {UPSTREAM: {"command": "in-memory"}}})
    loaded = LoadedSettings(settings, origins={}, warnings=(), files=())
    with tempfile.TemporaryDirectory(prefix="pml-") as home:
        paths = Paths.from_environ({"PML_HOME": home, "HOME": home})
        async with (
            open_runtime(
                loaded, paths, identity="benchmark", load=lambda: loaded, open_streams=_open_upstream
            ) as runtime,
            Client(in_memory(runtime.server), mode="legacy") as client,
        ):
            deadline = time.monotonic() + READY_SECONDS
            while not await _found(client.session):
                if time.monotonic() > deadline:
                    raise AnswerError(f"the model did not find the echo within {READY_SECONDS} s")
                await anyio.sleep(POLL_SECONDS)
            yield client.session


@asynccontextmanager
async def _open_upstream(*_: object, **__: object) -> AsyncIterator[tuple[Any, Any]]:
    server = build(synthetic_tools(TOOLS))
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, *theirs, server.create_initialization_options())
        yield ours
        tasks.cancel_scope.cancel()


async def measure() -> dict[str, list[Entry]]:
    """What a request of each kind enters."""
    recorder = Recorder(PACKAGE)
    measured: dict[str, list[Entry]] = {}
    try:
        async with open_session() as session:
            for way, request in WAYS.items():
                for _ in range(WARM_UP_REQUESTS):
                    await request(session)
                samples = []
                for _ in range(SAMPLES):
                    with recorder.recording() as entries:
                        await request(session)
                    samples.append(entries)
                measured[way] = min(samples, key=len)
    finally:
        recorder.close()
    return measured


def main() -> None:
    """Parse, measure, print, save."""
    parser = argparse.ArgumentParser(description="Which functions and files of the package one request enters.")
    parser.add_argument("--tree", action="store_true", help="also print each way in order, indented by depth")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    measured = anyio.run(measure)
    rows = [row(way, entries) for way, entries in measured.items()]
    trees = {way: tree(entries) for way, entries in measured.items()} if arguments.tree else {}
    if arguments.json:
        print(json.dumps({"ways": rows, "trees": trees} if trees else {"ways": rows}, indent=2))
    else:
        print(table(rows))
        for way, lines in trees.items():
            print(f"\n{way}", *lines, sep="\n")
    if not arguments.no_save:
        path = save("way", {"era": "2025-11-25", "tools": TOOLS}, {"ways": rows})
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
