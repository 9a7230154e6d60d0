"""Example queries of a gateway's current tools: read, learned from use, and the tools that may be written for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio.to_thread

from pml_gateway.activity.history import RecordFilter, read_history
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.problems import server_entry
from pml_gateway.example_queries.enrichment import SendableTools
from pml_gateway.example_queries.gates import learned
from pml_gateway.example_queries.library import ExampleOrigin, ExampleQuery
from pml_gateway.example_queries.sources import tool_digest
from pml_gateway.example_queries.writing import PromptDefinition
from pml_gateway.gateway.call import find
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.state import GatewayState, documents
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.models import load_embedder
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import KnownExamples, LearnedExamples
from pml_gateway.policy.principal import LOCAL, OWNER
from pml_gateway.trust.verdict import SubjectKind


async def examples(context: OperationContext, names: list[str], server: str | None) -> KnownExamples:
    """Return the tools that are named, of a server, or all, with their examples.

    Raises:
        GatewayError: there is no such tool or server.
    """
    state, rows = await tools_with_examples(context.gateway)
    return {
        "tools": [
            {
                "name": tool.qualified_name,
                "server": tool.upstream_id,
                "digest": tool_digest(tool),
                "examples": [{"text": each.text, "origin": each.origin.value} for each in rows[tool.qualified_name]],
            }
            for tool in _chosen(state, names, server)
        ],
        "digests": [tool_digest(tool) for tool in state.catalog.tools],
    }


async def learn_examples(context: OperationContext) -> LearnedExamples:
    """Return the recorded searches after which a tool was called, as examples of that tool."""
    state, rows = await tools_with_examples(context.gateway)
    catalog = state.catalog
    tools = {(tool.upstream_id, tool.name): tool for tool in catalog.tools}
    others = [tuple(each for each in known if each.origin is not ExampleOrigin.USE) for known in rows.values()]

    def read() -> dict[str, tuple[str, ...]]:
        calls = read_history(context.paths.activity_file, RecordFilter(context.identity)).calls
        asked = [
            (tools[call.tool].qualified_name, call.query)
            for call in calls
            if call.succeeded and call.query and call.tool in tools
        ]
        if not asked:
            return {}
        embedder = load_embedder(state.settings.search.model)
        cache = EmbeddingCache.of_catalog(context.paths.cache_dir, len(catalog.tools))
        return learned(documents(catalog.tools, catalog.ownership, others), asked, embedder, cache)

    found = await anyio.to_thread.run_sync(read)
    return {
        "tools": [
            {
                "server": tool.upstream_id,
                "name": tool.name,
                "digest": tool_digest(tool),
                "examples": [*found[tool.qualified_name]],
            }
            for tool in catalog.tools
            if tool.qualified_name in found
        ]
    }


async def tools_with_examples(gateway: Gateway) -> tuple[GatewayState, dict[str, tuple[ExampleQuery, ...]]]:
    """Return the state, and the examples of each tool of its catalog by name."""
    state = await gateway.wait_for_tools()
    tools = state.catalog.tools
    asked = await anyio.to_thread.run_sync(gateway.shared.examples.of, tools, state.settings.servers)
    return state, {tool.qualified_name: each for tool, each in zip(tools, asked, strict=True)}


def _chosen(state: GatewayState, names: Sequence[str], server: str | None) -> list[CatalogTool]:
    view = state.view(LOCAL)
    if server is not None:
        server_entry(state.settings, server)
    wanted = (
        {find(view, name, OWNER).qualified_name for name in names}
        if names
        else {tool.qualified_name for tool in view.tools if server in (None, tool.upstream_id)}
    )
    return [tool for tool in state.catalog.tools if tool.qualified_name in wanted]


async def sendable_tools(context: OperationContext) -> SendableTools:
    """Return the tools that the owner's clients see, and the definitions of those that the lint does not flag."""
    gateway = context.gateway
    state, rows = await tools_with_examples(gateway)
    tools = state.view(LOCAL).tools
    examples = [rows[tool.qualified_name] for tool in tools]
    sent = [tool for tool in tools if not _is_flagged(gateway, tool)]
    return SendableTools(
        definitions=tuple(map(_definition, sent)),
        documents=tuple(documents(tools, state.catalog.ownership, examples)),
        examples={tool_digest(tool): each for tool, each in zip(tools, examples, strict=True) if each},
        flagged=dict(Counter(tool.upstream_id for tool in tools) - Counter(tool.upstream_id for tool in sent)),
    )


def _is_flagged(gateway: Gateway, tool: CatalogTool) -> bool:
    pins = gateway.trust_gate.servers.get(tool.upstream_id)
    form = pins.latest((SubjectKind.TOOL, tool.name)) if pins is not None else None
    return form is not None and form.is_flagged


def _definition(tool: CatalogTool) -> PromptDefinition:
    properties = tool.definition["inputSchema"].get("properties")
    parameters = properties.items() if isinstance(properties, dict) else ()
    return PromptDefinition(
        digest=tool_digest(tool),
        key=tool.qualified_name,
        server=tool.upstream_id,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        parameters=tuple((str(name), _description(each)) for name, each in parameters),
    )


def _description(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""
