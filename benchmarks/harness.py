"""What the HTTP runners share: starting peers side by side, checked calls, command-line options, a printed table."""

from __future__ import annotations

import argparse
import random
import string
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import anyio
import httpx2

from benchmarks.baselines import direct, fastmcp_gateway, fastmcp_proxy, mcp_proxy, pml
from benchmarks.client import AnswerError, Client, Era, open_client
from benchmarks.peers import Endpoint, Peer, Upstream
from benchmarks.processes import PeerError
from benchmarks.synthetic import ECHO

WARM_CATALOG_SECONDS = 60
"""A peer may listen before it knows its tools; its first right answer must come within this."""

PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "direct": direct.start,
        "pml": pml.start,
        "fastmcp_proxy": fastmcp_proxy.start,
        "fastmcp_gateway": fastmcp_gateway.start,
        "mcp_proxy": mcp_proxy.start,
    }
)
PAYLOAD_CHARACTERS = 200


@dataclass(slots=True)
class Field:
    """The peers that run, and why the others do not."""

    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def drop(self, name: str, error: Exception) -> None:
        """A peer that failed gets no figures."""
        self.endpoints.pop(name, None)
        self.problems[name] = f"{type(error).__name__}: {error}"
        print(f"  {name}: {self.problems[name][:300]}")


class Payloads:
    """Texts that no answer can repeat by chance or from a cache."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed)

    def next(self) -> str:
        return "".join(self._generator.choices(string.ascii_letters + " äß€", k=PAYLOAD_CHARACTERS))


def options(description: str) -> argparse.ArgumentParser:
    """The options that every HTTP runner takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--eras", nargs="+", type=Era, choices=list(Era), default=list(Era))
    parser.add_argument("--rounds", type=int, default=5, help="how often the peers take turns")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser


@asynccontextmanager
async def started(names: Sequence[str], upstream: Upstream) -> AsyncIterator[Field]:
    """All peers in front of the same upstream at once; idle ones cost nothing but memory."""
    async with AsyncExitStack() as stack:
        running = Field()
        for name in names:
            try:
                endpoint = await stack.enter_async_context(PEERS[name](upstream))
                await first_answer(endpoint)
            except (PeerError, AnswerError, httpx2.HTTPError) as exc:
                running.drop(name, exc)
            else:
                running.endpoints[name] = endpoint
        yield running


async def checked_call(client: Client, endpoint: Endpoint, payload: str) -> float:
    """Seconds of one echo whose payload came back."""
    answer = await client.request("tools/call", endpoint.call_params(ECHO, {"payload": payload}))
    returned = endpoint.text(answer.result())
    if returned != payload:
        raise AnswerError(f"the payload came back as {returned[:200]!r}")
    return answer.seconds


async def first_answer(endpoint: Endpoint) -> None:
    """Wait until a peer has answered a call rightly."""
    deadline = time.monotonic() + WARM_CATALOG_SECONDS
    payloads = Payloads(0)
    while True:
        try:
            async with open_client(endpoint.url, endpoint.eras[0]) as client:
                await checked_call(client, endpoint, payloads.next())
        except AnswerError:
            if time.monotonic() > deadline:
                raise
            await anyio.sleep(0.2)
        else:
            return


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys, aligned."""
    if not rows:
        return "(nothing measured)"
    heads = list(rows[0])
    cells = [[_cell(row[head]) for head in heads] for row in rows]
    widths = [max(len(head), *(len(line[at]) for line in cells)) for at, head in enumerate(heads)]
    lines = [heads, *cells]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
