"""A writer of requests that is a client of a running gateway: its language model, reached over the control socket."""

from __future__ import annotations

from pathlib import Path

from pml_gateway.errors import GatewayError
from pml_gateway.paths import Paths
from pml_gateway.requests.writers import Answer, WriterError
from pml_gateway.serve.control import NO_ANSWER, ask_socket, sockets
from pml_gateway.types import JsonObject

LOOK_SECONDS = 3.0
"""Time limit in seconds for a gateway to name its client."""

GRACE_SECONDS = 10.0
"""Seconds that a gateway gets after the client's own limit, to report that it has passed."""

ROOM = 2
LEAST_TOKENS = 4096
"""Token limit of an answer, as a factor of the expected length and as a minimum: models count differently."""

HINT = "connect a client that offers sampling over stdio (pml serve), or name another writer with --writer"


class ClientWriter:
    """The language model of a client; who sits in front of it approves."""

    def __init__(self, socket: Path, pid: int, client: str, expected_tokens: int, seconds: float) -> None:
        """Answer with a client.

        Args:
            socket: the control socket of its gateway.
            pid: the gateway's process.
            client: what it calls itself.
            expected_tokens: of the longest answer.
            seconds: what one prompt may take, with the approval of it.
        """
        self._socket = socket
        self._pid = pid
        self._client = client
        self._max_tokens = max(LEAST_TOKENS, ROOM * expected_tokens)
        self._seconds = seconds

    @property
    def label(self) -> str:
        """The client, and that somebody has to say yes there."""
        return f"the language model of {self._client} (gateway {self._pid}), where each prompt waits for your approval"

    async def write(self, prompt: str) -> Answer:
        """Return the text that the client's model writes."""
        try:
            answer = await ask_socket(
                self._socket,
                "sample",
                self._seconds + GRACE_SECONDS,
                prompt=prompt,
                max_tokens=self._max_tokens,
                seconds=self._seconds,
            )
        except NO_ANSWER:
            raise WriterError(
                f"gateway {self._pid} ended before {self._client} answered", hint="start the client again"
            ) from None
        if "error" in answer:
            raise WriterError(str(answer["error"]), hint="approve each prompt in the client, within enrich.timeout")
        return Answer(str(answer["text"]))


async def client_writer(paths: Paths, configuration: str, expected_tokens: int, seconds: float) -> ClientWriter:
    """Return the client of the gateway that was started last, of those that can be asked.

    Raises:
        GatewayError: there is none; with the clients that there are, and why they cannot.
    """
    found: list[tuple[Path, JsonObject]] = []
    for path in sockets(paths):
        try:
            told = await ask_socket(path, "client", LOOK_SECONDS)
        except ConnectionRefusedError:
            continue
        except NO_ANSWER as error:
            told = {"error": f"no answer ({type(error).__name__})"}
        if told.get("configuration", configuration) == configuration:
            found.append((path, told))
    if not found:
        raise GatewayError(f"no gateway runs with {configuration}, so there is no client to ask", hint=HINT)
    able = [(path, told) for path, told in found if "error" not in told and told["refusal"] is None]
    if not able:
        reasons = "; ".join(_reason(path, told) for path, told in found)
        raise GatewayError(f"none of the clients can be asked for a text: {reasons}", hint=HINT)
    path, told = min(able, key=lambda each: float(each[1]["age_seconds"]))
    return ClientWriter(path, told["pid"], told["client"], expected_tokens, seconds)


def _reason(path: Path, told: JsonObject) -> str:
    if "error" in told:
        # A gateway of an earlier version knows no such command.
        return f"gateway {path.stem.partition('-')[0]}: {told['error']}"
    where = f" at {told['url']}" if told["url"] else ""
    return f"gateway {told['pid']}{where}: {told['refusal']}"
