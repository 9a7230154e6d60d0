"""Tools that may be sent to a language model which writes examples."""

from __future__ import annotations

from collections import Counter

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.example_queries.enrichment import SendableTools
from pml_gateway.example_queries.sources import tool_digest
from pml_gateway.example_queries.writing import PromptDefinition
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.state import documents
from pml_gateway.owner.answers.example_queries import tools_with_examples
from pml_gateway.owner.context import OperationContext
from pml_gateway.policy.principal import LOCAL
from pml_gateway.trust.verdict import SubjectKind


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
