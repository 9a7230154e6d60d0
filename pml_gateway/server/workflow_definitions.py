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
            "Run dependent calls in one request: results flow from step to step without passing through you. "
            '"$id.path" or "$0.items[*].id" (JMESPath) in arguments is an earlier result, and orders the steps; others '
            'run in parallel. "$item" is the item of for_each. A transform step (JMESPath over $id) calls nothing. '
            "return: final or step ids keeps answers short. With only intent: suggests a plan."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "steps": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "tool": {"type": "string"},
                            "arguments": {"type": "object"},
                            "transform": {"type": "string"},
                            "for_each": {"description": "a list, or a reference to one"},
                            "when": {"type": "string"},
                            "depends_on": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                },
                "intent": {"type": "string"},
                "on_error": {"enum": ["continue", "continue_all", "stop"]},
                "budget": {"type": "object", "description": "max_steps, max_tokens, max_seconds"},
                "dry_run": {"type": "boolean"},
                "return": {"description": "all, final or [ids]"},
            },
        },
    }
