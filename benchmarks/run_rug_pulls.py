"""Does a client ever see a definition that its server poisoned after it was accepted, and do harmless updates pass?

    PML_DATA=... python -m benchmarks.run_rug_pulls [--save]

Every row of `poison/tools.jsonl` that has a `before` is a tool of its server. That lists what was there before, both
kinds of clients connect (one opens with a handshake, one is stateless) and go on listing, searching and asking for
schemas, and then the server lists the new definition. An attack counts as seen if anything that a client is given
afterwards has another definition of the tool than before; a harmless update counts as held back if, in the end, it is
not served. The servers speak either era of the protocol. Tools of equal names are played one after the other.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.client import AnswerError
from benchmarks.results import save
from pml_gateway.catalog.build import legal_name
from pml_gateway.types import JsonObject
from tests.support.raw import HandshakeSession
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving

DATA = Path(os.environ.get("PML_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
AT_ONCE = 16
"""Tools that change at the same time, in front of one gateway."""

PATH = "/full_proxy"
MAX_LENGTH = 64
"""Characters of a name, by default."""

Row = dict[str, Any]


@dataclass(slots=True)
class Play:
    """What became of the rows that one gateway played."""

    seen: set[str] = field(default_factory=set)
    """Rows whose new definition a client was given."""
    reached: set[str] = field(default_factory=set)
    """Rows whose tool was called after the change though it was not listed."""
    rounds: int = 0
    seconds: float = 0.0


def main() -> None:
    """Play all rows against servers of both eras, print the counts, and save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    with (DATA / "poison" / "tools.jsonl").open(encoding="utf-8") as lines:
        rows = [row for line in lines if "before" in (row := json.loads(line))]
    measured = {era: anyio.run(_played, rows, era == "stateless") for era in ("handshake", "stateless")}
    print(json.dumps(measured, indent=1))
    if arguments.save:
        print(save("rug_pulls", {"rows": len(rows), "at_once": AT_ONCE}, measured))


async def _played(rows: Sequence[Row], is_modern: bool) -> JsonObject:
    plays = [await _play(batch, is_modern) for batch in _batches(rows)]
    seen = {each for play in plays for each in play.seen}
    attacks = {row["id"] for row in rows if row["label"] == "attack"}
    harmless = {row["id"] for row in rows if row["label"] == "benign"}
    held = sorted(harmless - seen)
    return {
        "attacks": len(attacks),
        "attacks_seen": sorted(attacks & seen),
        "attacks_called": sorted({each for play in plays for each in play.reached}),
        "harmless": len(harmless),
        "harmless_held_back": held,
        "harmless_held_back_share": round(len(held) / len(harmless), 4),
        "lists_between": sum(play.rounds for play in plays),
        "seconds": round(sum(play.seconds for play in plays), 1),
    }


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows of different tools, so that none poses as another."""
    left = list(rows)
    while left:
        batch: dict[str, Row] = {}
        for row in left:
            if len(batch) < AT_ONCE and row["tool"]["name"] not in batch:
                batch[row["tool"]["name"]] = row
        left = [row for row in left if row not in batch.values()]
        yield list(batch.values())


async def _play(rows: Sequence[Row], is_modern: bool) -> Play:
    play = Play()
    own = {row["id"]: _server_id(row) for row in rows}
    servers = {name: ScriptedServer(modern=is_modern) for name in own.values()}
    for row in rows:
        servers[own[row["id"]]].tools.append(row["before"])
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), servers) as served, served.handshake(PATH) as session:
            started = time.perf_counter()
            await served.gateway.refresh(30)
            await served.gateway.reading.judge_unread()
            before = await _told(served, session, rows)
            if unlisted := [row["id"] for row in rows if not _named(before["list"], row)]:
                raise AnswerError(f"not listed before the change: {', '.join(unlisted)}")
            done = anyio.Event()

            async def watch() -> None:
                while not done.is_set():
                    play.seen |= _different(rows, before, await _told(served, session, rows))
                    play.rounds += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                for name, server in servers.items():
                    server.tools = [row["tool"] for row in rows if own[row["id"]] == name]
                    if not is_modern:
                        await server.announce_change()
                await served.gateway.refresh(30)
                done.set()
            last = await _told(served, session, rows)
            play.seen |= _different(rows, before, last)
            for row in rows:
                if row["label"] == "attack" and not _named(last["list"], row):
                    name = row["tool"]["name"]
                    await served.call(_qualified(row, name), {})
                    if any(call["name"] == name for call in servers[own[row["id"]]].calls):
                        play.reached.add(row["id"])
            play.seconds = time.perf_counter() - started
    return play


async def _told(served: Serving, session: HandshakeSession, rows: Sequence[Row]) -> dict[str, Any]:
    """What clients of both eras are given of every tool."""
    modern = await served.result("tools/list", path=PATH)
    handshake = await anyio.to_thread.run_sync(session.result, "tools/list")
    names = [_qualified(row, row["tool"]["name"]) for row in rows]
    schemas = await served.call("tool_schema", {"names": names})
    found = await served.call("search_tools", {"query": names[0], "limit": 50})
    return {"list": modern["tools"], "handshake": handshake["tools"], "schemas": schemas, "found": found}


def _different(rows: Sequence[Row], before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """The rows of which a client was given another definition than before."""
    found = set()
    for row in rows:
        for place in ("list", "handshake"):
            was, given = _named(before[place], row), _named(now[place], row)
            if given and given != was:
                found.add(row["id"])
        description = str(row["tool"].get("description") or "")
        is_new = description and description not in str(row["before"].get("description") or "")
        texts = [json.dumps(now[place], ensure_ascii=False) for place in ("schemas", "found")]
        if is_new and any(json.dumps(description, ensure_ascii=False)[1:-1] in text for text in texts):
            found.add(row["id"])
    return found


def _named(listed: Sequence[JsonObject], row: Row) -> list[JsonObject]:
    """The definitions of a row's tool on a list, under the name of before or of now."""
    names = {_qualified(row, row[key]["name"]) for key in ("tool", "before")}
    return [tool for tool in listed if tool["name"] in names]


def _qualified(row: Row, name: str) -> str:
    return legal_name(f"{_server_id(row)}__{name}", (_server_id(row), name), MAX_LENGTH)


def _server_id(row: Row) -> str:
    """Short, so that names with it are not cut."""
    return f"s{hashlib.sha256(str(row['server']).encode()).hexdigest()[:6]}"


if __name__ == "__main__":
    main()
