"""Search quality of the gateway's own tools, by labelled queries."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.index.evaluation import labelled_queries
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import StarterQueries
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.query_files import starter_rows
from pml_gateway.reports.search_quality import SearchQuality, of_state
from pml_gateway.reports.search_quality import evaluate as evaluated
from pml_gateway.types import JsonObject, Ranking

INDEX_SECONDS = 120


async def evaluate(context: OperationContext, queries: list[JsonObject], ranking: str | None) -> SearchQuality:
    """Measure with queries as of a file, ranked as configured unless said otherwise."""
    labelled = list(labelled_queries(queries, "the request"))
    state = await context.gateway.wait_for_search(INDEX_SECONDS)
    subject = of_state(state, None if ranking is None else Ranking(ranking))
    return await anyio.to_thread.run_sync(evaluated, subject, labelled)


async def starter_queries(context: OperationContext) -> StarterQueries:
    """Return a first query for each tool."""
    return {"queries": starter_rows((await context.gateway.wait_for_tools()).view(LOCAL).tools)}
