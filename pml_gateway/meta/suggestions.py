"""A plan suggested for an intent: the tools that fit, and steps to fill in; nothing of it runs."""

from __future__ import annotations

from typing import Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.gateway.calling import CallContext
from pml_gateway.gateway.request import MAX_INTENT_LENGTH
from pml_gateway.gateway.state import GatewayState
from pml_gateway.index.clauses import split_clauses
from pml_gateway.policy.view import View
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject

MAX_TOOLS = 8
"""Ranked tools in a plan: twice what most requests need, at 60 tokens each."""


async def suggested_plan(context: CallContext, intent: Any) -> JsonObject:
    """A plan for an intent; nothing of it runs.

    Raises:
        InvalidInputError: the intent is no text.
    """
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidInputError("intent: what the workflow should do, in words, is missing")
    wanted = intent.strip()[:MAX_INTENT_LENGTH]
    state = await context.gateway.searchable()
    view = state.view(context.scope.client)
    parts = split_clauses(wanted) or (wanted,)
    ranked, chosen = await anyio.to_thread.run_sync(_found, state, view, wanted, parts)
    steps, missing = _skeleton(parts, chosen)
    tools = [{**_described(context, tool), "score": round(score, 3)} for tool, score in ranked]
    next_step = "fill in the arguments, refer to earlier results as $<id>.<path>, and send the steps"
    return {
        "plan": {"intent": wanted, "tools": tools, "steps": steps, "missing": missing},
        "executed": False,
        "next": next_step if steps else "no tool fits; search_tools with other words, or '*' for the systems",
    }


def _found(
    state: GatewayState, view: View, wanted: str, parts: tuple[str, ...]
) -> tuple[list[tuple[CatalogTool, float]], list[CatalogTool | None]]:
    """The tools that fit the whole, and the best one for each part that reaches the score."""
    minimum = state.settings.search.min_score
    ranked = [(tool, score) for tool, score in state.search(view, wanted, MAX_TOOLS).tools if score >= minimum]
    if len(parts) == 1:
        return ranked, [ranked[0][0] if ranked else None]
    chosen = [next(((tool, score) for tool, score in state.search(view, part, 1).tools), None) for part in parts]
    best = [each[0] if each is not None and each[1] >= minimum else None for each in chosen]
    known = {tool.qualified_name for tool, _ in ranked}
    more = [each for each in chosen if each and each[1] >= minimum and each[0].qualified_name not in known]
    return [*ranked, *dict(more).items()], best


def _skeleton(parts: tuple[str, ...], chosen: list[CatalogTool | None]) -> tuple[list[JsonObject], list[str]]:
    steps: list[JsonObject] = []
    missing: list[str] = []
    for part, tool in zip(parts, chosen, strict=True):
        if tool is None:
            missing.append(f"no tool for {part[:120]!r}")
            continue
        step_id = f"step{len(steps)}"
        schema = tool.definition["inputSchema"]
        required = [str(name) for name in schema.get("required") or ()]
        properties = schema.get("properties") or {}
        arguments = {name: f"<{_kind(properties.get(name))}>" for name in required}
        steps.append({"id": step_id, "tool": tool.qualified_name, "arguments": arguments})
        missing += [f"{step_id}.arguments.{name}" for name in required]
    return steps, missing


def _kind(schema: object) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else "value"


def _described(context: CallContext, tool: CatalogTool) -> JsonObject:
    described: JsonObject = {
        "name": tool.qualified_name,
        "signature": signature(tool.qualified_name, tool.definition["inputSchema"]),
        "description": first_sentence(tool.description or tool.title),
    }
    learned = context.gateway.shapes.shape_of(context.scope.client, tool)
    if "outputSchema" in tool.definition:
        described["returns"] = signature("", tool.definition["outputSchema"])
    elif learned is not None:
        described |= {"returns": signature("", learned.schema), "returns_inferred": True}
    return described
