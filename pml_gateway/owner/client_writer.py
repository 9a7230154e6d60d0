"""A writer of examples that is a client of a running gateway: its language model, reached over its owner's socket."""

from __future__ import annotations

from pathlib import Path

from pml_gateway.config.settings import EnrichSettings
from pml_gateway.errors import GatewayError
from pml_gateway.example_queries.enrichment import EnrichmentPlan
from pml_gateway.example_queries.writers import Answer, Writer, WriterError, names_client, writer_of
from pml_gateway.example_queries.writing import answer_tokens
from pml_gateway.owner.operations import CLIENT, SAMPLE
from pml_gateway.owner.results import ModelOfClient
from pml_gateway.owner.sockets import NO_ANSWER, ask_socket, sockets
from pml_gateway.paths import Paths
from pml_gateway.processes.children import Children

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
            socket: the owner's socket of its gateway.
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
                SAMPLE,
                self._seconds + GRACE_SECONDS,
                {"prompt": prompt, "max_tokens": self._max_tokens, "seconds": self._seconds},
            )
        except GatewayError as error:
            hint = "approve each prompt in the client, within enrich.timeout"
            raise WriterError(str(error), hint=hint) from None
        except NO_ANSWER:
            raise WriterError(
                f"gateway {self._pid} ended before {self._client} answered", hint="start the client again"
            ) from None
        return Answer(answer["text"])


async def client_writer(paths: Paths, configuration: str, expected_tokens: int, seconds: float) -> ClientWriter:
    """Return the client of the gateway that was started last, of those that can be asked.

    Raises:
        GatewayError: there is none; with the clients that there are, and why they cannot.
    """
    able: list[tuple[Path, ModelOfClient]] = []
    reasons: list[str] = []
    for path in sockets(paths):
        try:
            told = await ask_socket(path, CLIENT, LOOK_SECONDS)
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except (GatewayError, *NO_ANSWER) as error:
            why = str(error) if isinstance(error, GatewayError) else f"no answer ({type(error).__name__})"
            reasons.append(f"gateway {path.stem.partition('-')[0]}: {why}")
            continue
        if told["config"] != configuration:
            continue
        if told["refusal"] is None:
            able.append((path, told))
        else:
            where = f" at {told['url']}" if told["url"] else ""
            reasons.append(f"gateway {told['pid']}{where}: {told['refusal']}")
    if able:
        path, told = min(able, key=lambda each: each[1]["age_seconds"])
        return ClientWriter(path, told["pid"] or 0, told["client"] or "", expected_tokens, seconds)
    if reasons:
        raise GatewayError(f"none of the clients can be asked for a text: {'; '.join(reasons)}", hint=HINT)
    raise GatewayError(f"no gateway runs with {configuration}, so there is no client to ask", hint=HINT)


async def chosen_writer(
    settings: EnrichSettings, named: str | None, plan: EnrichmentPlan, children: Children, paths: Paths, identity: str
) -> Writer:
    """Return the writer that is named or configured: a command, an endpoint, or a client of a running gateway.

    Raises:
        GatewayError: there is none, or it lacks something.
    """
    if names_client(settings, named):
        expected = max((answer_tokens(part, settings.languages) for part in plan.parts), default=0)
        return await client_writer(paths, identity, expected, settings.timeout)
    return writer_of(settings, children, chosen=named)
