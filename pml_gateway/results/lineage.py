"""The lineage of a reference: the calls and references that led to it, and the calls that used it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from pml_gateway.results.stored import Source, StoredResult, timestamp
from pml_gateway.types import JsonObject

MAX_RESULTS = 100

LookUp = Callable[[str], Awaitable[StoredResult | None]]
"""A lookup of a handle; None if it does not exist for the caller."""

Uses = Callable[[str], Iterable[Source]]
"""The calls that used a handle, as far as they are recorded."""


async def lineage(ref: str, look_up: LookUp, uses: Uses) -> JsonObject | None:
    """Return nodes and edges around a reference: edges go from results to calls that used them, from calls to results.

    Return None if the reference itself does not exist.
    """
    first = await look_up(ref)
    if first is None:
        return None
    graph = _Graph()
    pending: list[tuple[str, StoredResult | None]] = [(ref, first)]
    while pending and len(graph.results) < MAX_RESULTS:
        handle, stored = pending.pop(0)
        if handle in graph.results:
            continue
        graph.add_result(handle, stored)
        if stored is not None:
            graph.add_call(stored.source, made=handle)
            pending += [(used, await look_up(used)) for used in stored.source.refs if used not in graph.results]
    for source in uses(ref):
        graph.add_call(source, made=None)
    return {"ref": ref, "nodes": graph.nodes, "edges": graph.edges}


def call_of(source: Source) -> JsonObject:
    """Return the description of the call that made a result."""
    return {
        "tool": source.name,
        "inputs": source.inputs,
        "status": source.status,
        "at": timestamp(source.at),
        "seconds": round(source.seconds, 3),
        **({"run": source.run} if source.run else {}),
    }


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[JsonObject] = []
        self.edges: list[JsonObject] = []
        self.results: set[str] = set()
        self._calls: dict[Source, str] = {}

    def add_result(self, handle: str, stored: StoredResult | None) -> None:
        self.results.add(handle)
        node: JsonObject = {"id": handle, "kind": "result"}
        if stored is None:
            self.nodes.append({**node, "status": "gone"})
            return
        facts = {"bytes": stored.bytes, "tokens": stored.tokens, "sha256": stored.sha256, "shape": stored.shape}
        self.nodes.append({**node, **facts, "expires_at": timestamp(stored.expires_at)})

    def add_call(self, source: Source, made: str | None) -> None:
        call = self._calls.get(source)
        if call is None:
            call = self._calls[source] = f"call_{len(self._calls) + 1}"
            self.nodes.append({"id": call, "kind": "call", **call_of(source)})
            self.edges += [{"from": used, "to": call} for used in source.refs]
        if made is not None:
            self.edges.append({"from": call, "to": made})
