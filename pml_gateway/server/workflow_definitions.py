"""`call_batch` and `execute_workflow` as clients list them."""

from __future__ import annotations

from pml_gateway.types import JsonObject


def batch_definition() -> JsonObject:
    """The definition of `call_batch`."""
    return {
        "name": "call_batch",
        "description": "Several independent calls at once; each answers ok or error in its own slot.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "calls": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "object"},
                            "id": {"type": "string"},
                        },
                        "required": ["name"],
                    },
                },
                "max_parallel": {"type": "integer"},
            },
            "required": ["calls"],
        },
    }


def workflow_definition() -> JsonObject:
    """The definition of `execute_workflow`."""
    return {
        "name": "execute_workflow",
        "description": (
            "Run dependent calls in one request; only wanted results come back. A step is {id, tool, arguments} or "
            '{id, transform: JMESPath}, optional depends_on, when, for_each. "$id.path" is an earlier result, "$item" '
            "the item of for_each. Only intent: suggests a plan."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "steps": {"type": "array", "items": {"type": "object"}},
                "intent": {"type": "string"},
                "on_error": {"enum": ["continue", "continue_all", "stop"]},
                "budget": {"type": "object", "description": "max_steps, max_tokens, max_seconds"},
                "dry_run": {"type": "boolean"},
                "return": {"description": "all, final or step ids"},
            },
        },
    }
