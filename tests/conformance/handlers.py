"""What the conformance server does when a tool is called, a resource read or a prompt got."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    CreateMessageResult,
    ElicitResult,
    EmbeddedResource,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    PromptMessage,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

from pml_gateway.mcp.sdk import request_channel
from tests.conformance.definitions import DEFAULTS_FORM, ENUMS_FORM, PNG, USER_FORM, WAV
from tests.conformance.questions import Context, ask, ask_for_prompt, elicit, sample, text_result

STEP_SECONDS = 0.05
"""The suite wants logs and progress spread over time."""

ToolResult = CallToolResult | InputRequiredResult
Change = Callable[[str], Awaitable[None]]
Log = Callable[[Context, str], Awaitable[None]]

_ASKING = "test_input_required_result_"


async def call_tool(ctx: Context, params: CallToolRequestParams, change: Change, log: Log) -> ToolResult:
    """The result of one tool."""
    if params.name.startswith(_ASKING):
        return ask(params.name.removeprefix(_ASKING), ctx)
    arguments = params.arguments or {}
    match params.name:
        case "test_simple_text":
            return text_result("This is a simple text response for testing.")
        case "test_image_content":
            return CallToolResult(content=[_image()])
        case "test_audio_content":
            return CallToolResult(content=[AudioContent(type="audio", data=WAV, mime_type="audio/wav")])
        case "test_embedded_resource":
            return CallToolResult(content=[_embedded("test://embedded-resource", "An embedded resource.")])
        case "test_multiple_content_types":
            text = TextContent(type="text", text="Multiple content types test:")
            data = _embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
            return CallToolResult(content=[text, _image(), data])
        case "test_error_handling":
            return text_result("This tool intentionally returns an error for testing").model_copy(
                update={"is_error": True}
            )
        case "json_schema_2020_12_tool" | "test_headers":
            return text_result(json.dumps(arguments, sort_keys=True))
        case "test_trigger_tool_change" | "test_trigger_prompt_change" | "test_trigger_resource_update":
            await change(params.name.removeprefix("test_trigger_"))
            return text_result("changed")
        case _:
            return await _at_work(ctx, params.name, arguments, log)


async def _at_work(ctx: Context, name: str, arguments: dict[str, Any], log: Log) -> ToolResult:
    """The tools that say or ask something before they answer."""
    match name:
        case "test_tool_with_logging" | "test_logging_tool":
            for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
                await log(ctx, text)
                await anyio.sleep(STEP_SECONDS)
            return text_result("logged")
        case "test_tool_with_progress":
            for done in (0, 50, 100):
                await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
                await anyio.sleep(STEP_SECONDS)
            return text_result("done")
        case "test_reconnection":
            if ctx.close_sse_stream is not None:
                await ctx.close_sse_stream()
            await anyio.sleep(2 * STEP_SECONDS)
            return text_result("Reconnection test completed")
        case "test_missing_capability":
            _require_sampling(ctx)
            return text_result("the client can sample")
        case "test_sampling":
            return await _ask(ctx, sample(str(arguments["prompt"])))
        case "test_elicitation":
            return await _ask(ctx, elicit(str(arguments["message"]), USER_FORM))
        case "test_elicitation_sep1034_defaults":
            return await _ask(ctx, elicit("Please check what is filled in", DEFAULTS_FORM))
        case "test_elicitation_sep1330_enums":
            return await _ask(ctx, elicit("Please choose", ENUMS_FORM))
        case "test_streaming_elicitation":
            await ctx.session.report_progress(0, 1)
            return InputRequiredResult(input_requests={"user": elicit("Who are you?", USER_FORM)})
        case _:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}")


async def _ask(ctx: Context, question: InputRequest) -> CallToolResult:
    """The client's answer to a request of the server, as tools written before 2026 ask: there it is an error."""
    data = question.model_dump(by_alias=True, mode="json", exclude_none=True)
    return text_result(_answered(await request_channel(ctx).send_raw_request(data["method"], data["params"])))


def _answered(answer: dict[str, Any]) -> str:
    if "action" in answer:
        given = ElicitResult.model_validate(answer)
        return f"User response: action={given.action}, content={json.dumps(given.content, sort_keys=True)}"
    said = CreateMessageResult.model_validate(answer).content
    return f"LLM response: {said.text if isinstance(said, TextContent) else said}"


def _require_sampling(ctx: Context) -> None:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "this tool needs a client that can sample",
            {"requiredCapabilities": {"sampling": {}}},
        )


def read_resource(uri: str, updates: int) -> ReadResourceResult:
    """The contents of one resource; those of the watched one say how often it was updated.

    Raises:
        MCPError: there is no such resource.
    """
    match uri:
        case "test://static-text":
            contents = TextResourceContents(uri=uri, mime_type="text/plain", text="The static text resource.")
        case "test://static-binary":
            return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)])
        case "test://watched-resource":
            contents = TextResourceContents(uri=uri, mime_type="text/plain", text=f"Updated {updates} times.")
        case _ if uri.startswith("test://template/") and uri.endswith("/data"):
            number = uri.removeprefix("test://template/").removesuffix("/data")
            text = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
            contents = TextResourceContents(uri=uri, mime_type="application/json", text=text)
        case _:
            raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return ReadResourceResult(contents=[contents])


def get_prompt(ctx: Context, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    """The messages of one prompt.

    Raises:
        MCPError: there is no such prompt, or an argument is missing.
    """
    arguments = params.arguments or {}
    match params.name:
        case "test_input_required_result_prompt":
            return ask_for_prompt(ctx)
        case "test_simple_prompt":
            return _messages(_text("This is a simple prompt for testing."))
        case "test_prompt_with_arguments" if {"arg1", "arg2"} <= arguments.keys():
            said = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
            return _messages(_text(said))
        case "test_prompt_with_embedded_resource" if "resourceUri" in arguments:
            resource = _embedded(arguments["resourceUri"], "Embedded resource content for testing.")
            return _messages(resource, _text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            return _messages(_image(), _text("Please analyze the image above."))
        case _:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt or missing arguments: {params.name}")


def _messages(*contents: ContentBlock) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=content) for content in contents])


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _image() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    resource = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return EmbeddedResource(type="resource", resource=resource)
