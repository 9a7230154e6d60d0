"""The language model of a local client: asked between its requests, for the owner's own commands and nobody else."""

from __future__ import annotations

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import CONNECTION_CLOSED

from pml_gateway.errors import GatewayError
from pml_gateway.example_queries.writers import MAX_ANSWER_BYTES
from pml_gateway.log import get_logger
from pml_gateway.secrets.known import without_secrets
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


class ClientModel:
    """Access of the owner's commands to the client's model: its availability, and one request at a time."""

    def __init__(self, local: LocalClients | None) -> None:
        """Ask one of the clients on this machine; None where all are elsewhere, over HTTP."""
        self._local = local
        self._is_asked = False

    @property
    def name(self) -> str | None:
        """Return the name of the client; None over HTTP."""
        return None if self._local is None else self._name

    async def answer(self, prompt: str, max_tokens: int, seconds: float) -> str:
        """Return the text that the client's model writes.

        Raises:
            GatewayError: there is none, and why.
        """
        if (why := self.refusal) is not None:
            raise GatewayError(why)
        if self._is_asked:
            raise GatewayError(f"{self._name} is being asked by another command")
        self._is_asked = True
        try:
            return await self._asked(prompt, max_tokens, seconds)
        finally:
            self._is_asked = False

    @property
    def _client(self) -> LocalClient | None:
        return None if self._local is None else self._local.writer

    @property
    def _name(self) -> str:
        return "" if (client := self._client) is None else client.name

    @property
    def refusal(self) -> str | None:
        """Return the reason why no client can be asked, if so."""
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

    async def _asked(self, prompt: str, max_tokens: int, seconds: float) -> str:
        client = self._client
        assert client is not None
        assert client.audience is not None
        logger.info("pml enrich asks %s for a text of at most %d tokens", self._name, max_tokens)
        try:
            with anyio.fail_after(seconds):
                question = {
                    "messages": [{"role": "user", "content": {"type": "text", "text": prompt}}],
                    "maxTokens": max_tokens,
                    "includeContext": "none",
                }
                answer = await client.audience.ask(CREATE_MESSAGE, question, None)
        except TimeoutError as error:
            what = f"did not answer within {seconds:g} seconds (enrich.timeout)"
            raise GatewayError(f"{self._name} {what}") from error
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise GatewayError(f"{self._name} left before it answered") from error
            said = shortened(without_secrets(" ".join(error.error.message.split())), SHOWN_OF_REFUSAL)
            raise GatewayError(f"{self._name} refused ({error.error.code}): {said}") from error
        return self._read(answer, max_tokens)

    def _read(self, answer: JsonObject, max_tokens: int) -> str:
        """Return the text of a client's answer, in which anything may stand."""
        content = answer.get("content")
        blocks = content if isinstance(content, list) else [content]
        texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
        text = "".join(each for each in texts if isinstance(each, str))
        if answer.get("stopReason") == "maxTokens":
            raise GatewayError(f"{self._name} cut its answer at {max_tokens:,} tokens")
        if not text:
            raise GatewayError(f"{self._name} answered no text")
        if len(text.encode("utf-8", "surrogatepass")) > MAX_ANSWER_BYTES:
            raise GatewayError(f"{self._name} answered more than {MAX_ANSWER_BYTES:,} bytes")
        return text
