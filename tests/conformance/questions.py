"""The tools and prompts of the conformance server that ask in their result (`input_required`), round by round."""

from __future__ import annotations

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolResult,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    GetPromptResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    PromptMessage,
    SamplingMessage,
    TextContent,
)

from tests.conformance.definitions import form

Context = ServerRequestContext[Any, Any]


def elicit(message: str, schema: dict[str, Any]) -> ElicitRequest:
    """A question with a form."""
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(text: str, max_tokens: int = 100) -> CreateMessageRequest:
    """A question to the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens))


def text_result(text: str) -> CallToolResult:
    """A result of one text."""
    return CallToolResult(content=[TextContent(type="text", text=text)])


_NAME = elicit("What is your name?", form("name"))
_CONFIRM = elicit("Please confirm", form("ok", kind="boolean"))

_FIRST_ROUNDS: dict[str, dict[str, InputRequest]] = {
    "elicitation": {"user_name": _NAME},
    "list_roots": {"client_roots": ListRootsRequest()},
    "multiple_inputs": {
        "user_name": _NAME,
        "greeting": sample("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    },
    "request_state": {"confirm": _CONFIRM},
    "sampling": {"capital_question": sample("What is the capital of France?")},
    "tampered_state": {"confirm": _CONFIRM},
}
_WITH_STATE = {"multiple_inputs", "request_state", "tampered_state"}


def ask(name: str, ctx: Context) -> CallToolResult | InputRequiredResult:
    """The answer of the tool `test_input_required_result_<name>` to one round."""
    params = ctx.params or {}
    answers = params.get("inputResponses") or {}
    state = params.get("requestState")
    match name:
        case "multi_round":
            return _two_rounds(answers, state)
        case "capabilities":
            return _what_the_client_can(answers, ctx.session.client_capabilities or ClientCapabilities())
        case _:
            asked = _FIRST_ROUNDS[name]
            wanted = f"state of {name}" if name in _WITH_STATE else None
            if asked.keys() <= answers.keys() and state == wanted:
                return text_result(f"state-ok: {_said(answers)}" if wanted else _said(answers))
            return InputRequiredResult(input_requests=asked, request_state=wanted)


def ask_for_prompt(ctx: Context) -> GetPromptResult | InputRequiredResult:
    """The prompt that asks for its context first."""
    answer = ((ctx.params or {}).get("inputResponses") or {}).get("user_context")
    if answer is None:
        context = elicit("What context should the prompt use?", form("context"))
        return InputRequiredResult(input_requests={"user_context": context})
    content = TextContent(type="text", text=f"In the context of {answer['content']['context']}.")
    return GetPromptResult(messages=[PromptMessage(role="user", content=content)])


def _two_rounds(answers: dict[str, Any], state: str | None) -> CallToolResult | InputRequiredResult:
    if "step2" in answers and state == "after step 1":
        return text_result(_said(answers))
    if "step1" in answers and state == "at step 1":
        color = elicit("Step 2: What is your favorite color?", form("color"))
        return InputRequiredResult(input_requests={"step2": color}, request_state="after step 1")
    name = elicit("Step 1: What is your name?", form("name"))
    return InputRequiredResult(input_requests={"step1": name}, request_state="at step 1")


def _what_the_client_can(
    answers: dict[str, Any], capabilities: ClientCapabilities
) -> CallToolResult | InputRequiredResult:
    asked: dict[str, InputRequest] = {}
    if capabilities.elicitation is not None:
        asked["user_name"] = _NAME
    if capabilities.sampling is not None:
        asked["capital_question"] = sample("What is the capital of France?")
    if not asked or asked.keys() <= answers.keys():
        return text_result(_said(answers))
    return InputRequiredResult(input_requests=asked)


def _said(answers: dict[str, Any]) -> str:
    return "; ".join(f"{key}: {answer}" for key, answer in sorted(answers.items()))
