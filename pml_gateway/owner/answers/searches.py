"""Search for a person, who waits for the model and for servers that fail, and its quality by labelled queries."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread

from pml_gateway.config.problems import server_entry
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.index.evaluation import labelled_queries
from pml_gateway.owner.answers.calls import refuse_disabled
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import StarterQueries, ToolResult
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.query_files import starter_rows
from pml_gateway.reports.search_quality import SearchQuality, of_state
from pml_gateway.reports.search_quality import evaluate as evaluated
from pml_gateway.types import JsonObject, Ranking

MAX_HITS = 1000

MODEL_SECONDS = 60.0
ENCODING_SECONDS = 5.0
"""Seconds that a search waits for the model to load, and then for the vectors of a thousand new tools;
the next search continues there."""

UNLISTED_SECONDS = 3.0
"""Seconds that a search waits for servers without a known list; it does not wait for one that failed."""


INDEX_SECONDS = 120


async def search(
    context: OperationContext,
    query: str,
    limit: int | None = None,
    detail: str | None = None,
    server: str | None = None,
    explain: bool = False,
) -> ToolResult:
    """Return the result of `search_tools`; with `explain`, with what speaks for each hit."""
    gateway = context.gateway
    if server is not None:
        server_entry(gateway.state.settings, server)
    await gateway.connect_once(server or "")
    await _prepare(gateway)
    given = {"query": query, "limit": limit, "detail": detail, "server": server}
    arguments = {key: value for key, value in given.items() if value is not None}
    result = await context.meta_tool("search_tools", arguments)
    found = result["structuredContent"]
    if explain and "hits" in found:
        evidence = await _evidence(gateway, query, server)
        nothing: JsonObject = {"meaning": None, "words": None}
        found["hits"] = [hit | {"evidence": evidence.get(hit["name"], nothing)} for hit in found["hits"]]
    return result


async def schema(context: OperationContext, names: list[str], format: str) -> ToolResult:
    """Return the result of `tool_schema`."""
    for name in names:
        await context.gateway.connect_once(name)
        if (await context.gateway.wait_for_tools()).view(LOCAL).resolve(name) is None:
            refuse_disabled(context.gateway, name)
    return await context.meta_tool("tool_schema", {"names": names, "format": format})


async def _prepare(gateway: Gateway) -> None:
    with anyio.move_on_after(UNLISTED_SECONDS):
        async with anyio.create_task_group() as tasks:
            for name in gateway.unlisted():
                if gateway.pool.upstreams[name].connector.last_error is None:
                    tasks.start_soon(gateway.connect_once, name)
    await gateway.wait_for_tools()
    await gateway.indexer.wait_for_usable_index(MODEL_SECONDS)
    await gateway.indexer.wait(ENCODING_SECONDS)


async def _evidence(gateway: Gateway, query: str, server: str | None) -> dict[str, JsonObject]:
    """Return the evidence for every hit.

    That is its score by meaning alone and by words alone (None if it has none), and the nearest example query.
    """
    state = await gateway.wait_for_search(60)
    view = state.view(LOCAL)
    found: dict[str, JsonObject] = {}
    for name, ranking in (("meaning", Ranking.DENSE), ("words", Ranking.LEXICAL)):
        hits = await anyio.to_thread.run_sync(
            partial(state.search, view, query, MAX_HITS, servers=[server] if server else [], ranking=ranking)
        )
        for tool, score in hits.tools if hits.ranking is ranking else ():
            found.setdefault(tool.qualified_name, {"meaning": None, "words": None})[name] = round(score, 4)
    if state.index is not None:
        asked = await anyio.to_thread.run_sync(state.index.matching_examples, query, list(found))
        for name, example in asked.items():
            found[name]["example"] = example
    return found


async def evaluate(context: OperationContext, queries: list[JsonObject], ranking: str | None) -> SearchQuality:
    """Measure with queries as of a file, ranked as configured unless said otherwise."""
    labelled = list(labelled_queries(queries, "the request"))
    state = await context.gateway.wait_for_search(INDEX_SECONDS)
    subject = of_state(state, None if ranking is None else Ranking(ranking))
    return await anyio.to_thread.run_sync(evaluated, subject, labelled)


async def starter_queries(context: OperationContext) -> StarterQueries:
    """Return a first query for each tool."""
    return {"queries": starter_rows((await context.gateway.wait_for_tools()).view(LOCAL).tools)}
