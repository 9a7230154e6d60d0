"""What the conformance suite asks a server to have: its tools, prompts, resources and the forms they show."""

from __future__ import annotations

from typing import Any

from mcp_types import Prompt, PromptArgument, Resource, ResourceTemplate, Tool

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

NO_ARGUMENTS: dict[str, Any] = {"type": "object"}

JSON_SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

USER_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    },
    "required": ["username", "email"],
}

DEFAULTS_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}


def _titled(*values: str) -> list[dict[str, str]]:
    return [{"const": value, "title": value.title()} for value in values]


ENUMS_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": _titled("value1", "value2", "value3")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": _titled("value1", "value2")}},
    },
}


def form(*names: str, kind: str = "string") -> dict[str, Any]:
    """A form of required fields of one type."""
    return {"type": "object", "properties": {name: {"type": kind} for name in names}, "required": list(names)}


def _tool(name: str, description: str, schema: dict[str, Any] | None = None) -> Tool:
    return Tool(name=name, description=description, input_schema=schema or NO_ARGUMENTS)


_HEADER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "description": "Where to look", "x-mcp-header": "Region"},
        "query": {"type": "string"},
    },
    "required": ["region"],
}

TOOLS = [
    _tool("json_schema_2020_12_tool", "Takes a contact described with JSON Schema 2020-12.", JSON_SCHEMA_2020_12),
    _tool("test_audio_content", "Answers with a sound."),
    _tool("test_elicitation", "Asks the user to fill in a form.", form("message")),
    _tool("test_elicitation_sep1034_defaults", "Asks with a form whose fields have defaults."),
    _tool("test_elicitation_sep1330_enums", "Asks with a form of every kind of choice."),
    _tool("test_embedded_resource", "Answers with an embedded resource."),
    _tool("test_error_handling", "Always fails."),
    _tool("test_headers", "Takes an argument that clients repeat in a header.", _HEADER_SCHEMA),
    _tool("test_image_content", "Answers with a picture."),
    _tool("test_input_required_result_capabilities", "Asks only what the client can answer."),
    _tool("test_input_required_result_elicitation", "Asks for a name."),
    _tool("test_input_required_result_list_roots", "Asks for the client's roots."),
    _tool("test_input_required_result_multi_round", "Asks twice."),
    _tool("test_input_required_result_multiple_inputs", "Asks three things at once."),
    _tool("test_input_required_result_request_state", "Asks, and wants its state back."),
    _tool("test_input_required_result_sampling", "Asks the client's model."),
    _tool("test_input_required_result_tampered_state", "Asks, and refuses a state that was changed."),
    _tool("test_logging_tool", "Logs while it works."),
    _tool("test_missing_capability", "Needs a client that can sample."),
    _tool("test_multiple_content_types", "Answers with text, a picture and a resource."),
    _tool("test_reconnection", "Ends its stream before it answers."),
    _tool("test_sampling", "Asks the client's model.", form("prompt")),
    _tool("test_simple_text", "Answers with a text."),
    _tool("test_streaming_elicitation", "Reports progress, then asks."),
    _tool("test_tool_with_logging", "Logs three messages."),
    _tool("test_tool_with_progress", "Reports progress three times."),
    _tool("test_trigger_prompt_change", "Changes the list of prompts."),
    _tool("test_trigger_resource_update", "Updates the watched resource."),
    _tool("test_trigger_tool_change", "Changes the list of tools."),
]

RESOURCES = [
    Resource(uri="test://static-binary", name="static-binary", description="A picture.", mime_type="image/png"),
    Resource(uri="test://static-text", name="static-text", description="A text.", mime_type="text/plain"),
    Resource(uri="test://watched-resource", name="watched-resource", description="A text.", mime_type="text/plain"),
]

RESOURCE_TEMPLATES = [
    ResourceTemplate(
        uri_template="test://template/{id}/data",
        name="template",
        description="Data of an id.",
        mime_type="application/json",
    )
]


def _prompt(name: str, description: str, *arguments: str) -> Prompt:
    given = [PromptArgument(name=argument, description=f"The {argument}.", required=True) for argument in arguments]
    return Prompt(name=name, description=description, arguments=given or None)


PROMPTS = [
    _prompt("test_input_required_result_prompt", "Asks for its context first."),
    _prompt("test_prompt_with_arguments", "Repeats two arguments.", "arg1", "arg2"),
    _prompt("test_prompt_with_embedded_resource", "Embeds a resource.", "resourceUri"),
    _prompt("test_prompt_with_image", "Shows a picture."),
    _prompt("test_simple_prompt", "A simple prompt."),
]
