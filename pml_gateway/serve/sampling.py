"""The language model of a local client: asked between its requests, for the owner's own commands and nobody else."""

from __future__ import annotations

import os
from typing import Literal

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import CONNECTION_CLOSED
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.log import get_logger
from pml_gateway.requests.writers import MAX_ANSWER_BYTES
from pml_gateway.secrets.known import without_secrets
from pml_gateway.serve.presence import Presence
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClient, LocalClients

logger = get_logger(__name__)

CREATE_MESSAGE = "sampling/createMessage"

MAX_PROMPT = 256 * 1024
"""Characters. Those of `pml enrich` stay below a third of it."""

MAX_TOKENS = 64 * 1024
MAX_SECONDS = 3600.0
"""As of `enrich.timeout`."""

SHOWN_OF_REFUSAL = 300
"""Characters of what a client says of its refusal."""


class SamplingQuestion(BaseModel):
    """All that can be asked: one text, answered by a text. No tools, no context, no other method."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    command: Literal["sample"]
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    max_tokens: int = Field(gt=0, le=MAX_TOKENS)
    seconds: float = Field(gt=0, le=MAX_SECONDS)

    def as_params(self) -> JsonObject:
        """As the client is asked."""
        return {
            "messages": [{"role": "user", "content": {"type": "text", "text": self.prompt}}],
            "maxTokens": self.max_tokens,
            "includeContext": "none",
        }


class ClientModel:
    """Access of the control socket to the client's model: its availability, and one request at a time."""

    def __init__(self, presence: Presence, local: LocalClients | None, configuration: str) -> None:
        """Ask a client.

        Args:
            presence: of this process.
            local: the clients on this machine; None where all are elsewhere, over HTTP.
            configuration: what names the configuration that is served.
        """
        self._presence = presence
        self._local = local
        self._configuration = configuration
        self._is_asked = False

    def as_json(self) -> JsonObject:
        """Return the client, and why it cannot be asked."""
        return {
            "pid": os.getpid(),
            **self._presence.as_json(),
            "configuration": self._configuration,
            "client": None if self._local is None else self._name,
            "refusal": self._refusal(),
        }

    async def answer(self, request: JsonObject) -> JsonObject:
        """Return the text that the client's model writes, or why there is none."""
        try:
            question = SamplingQuestion.model_validate(request)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return {"error": f"this cannot be asked: {'.'.join(map(str, first['loc']))}: {first['msg']}"}
        if (why := self._refusal()) is not None:
            return {"error": why}
        if self._is_asked:
            return {"error": f"{self._name} is being asked by another command"}
        self._is_asked = True
        try:
            return await self._asked(question)
        finally:
            self._is_asked = False

    @property
    def _client(self) -> LocalClient | None:
        return None if self._local is None else self._local.writer

    @property
    def _name(self) -> str:
        return "" if (client := self._client) is None else client.name

    def _refusal(self) -> str | None:
        if self._local is None:
            return "clients over HTTP can be asked only within their own calls"
        if (client := self._client) is None:
            return "its client has not said yet who it is"
        if client.audience is None:
            return (
                f"{client.name} speaks the stateless protocol, in which clients are asked only within their own calls"
            )
        if client.client_capabilities.refusal(CREATE_MESSAGE, {}) is not None:
            return f"{client.name} does not offer sampling"
        return None

    async def _asked(self, question: SamplingQuestion) -> JsonObject:
        client = self._client
        assert client is not None
        assert client.audience is not None
        logger.info("pml enrich asks %s for a text of at most %d tokens", self._name, question.max_tokens)
        try:
            with anyio.fail_after(question.seconds):
                answer = await client.audience.ask(CREATE_MESSAGE, question.as_params(), None)
        except TimeoutError:
            return {"error": f"{self._name} did not answer within {question.seconds:g} seconds (enrich.timeout)"}
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                return {"error": f"{self._name} left before it answered"}
            said = without_secrets(" ".join(error.error.message.split()))
            return {"error": f"{self._name} refused ({error.error.code}): {shortened(said, SHOWN_OF_REFUSAL)}"}
        return self._read(answer, question)

    def _read(self, answer: JsonObject, question: SamplingQuestion) -> JsonObject:
        """Return the text of a client's answer, in which anything may stand."""
        content = answer.get("content")
        blocks = content if isinstance(content, list) else [content]
        texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
        text = "".join(each for each in texts if isinstance(each, str))
        if answer.get("stopReason") == "maxTokens":
            return {"error": f"{self._name} cut its answer at {question.max_tokens:,} tokens"}
        if not text:
            return {"error": f"{self._name} answered no text"}
        if len(text.encode("utf-8", "surrogatepass")) > MAX_ANSWER_BYTES:
            return {"error": f"{self._name} answered more than {MAX_ANSWER_BYTES:,} bytes"}
        return {"text": text}
