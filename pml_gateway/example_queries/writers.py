"""Writers: the language models that may write examples, as commands of this machine or services the owner named."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.config.settings import EnrichSettings
from pml_gateway.environment import child_environment
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError
from pml_gateway.index.text import well_formed
from pml_gateway.processes.children import Children
from pml_gateway.processes.command import OutputTooLongError, run_command
from pml_gateway.secrets.known import without_secrets
from pml_gateway.secrets.masking import mask_text
from pml_gateway.secrets.references import resolve

MAX_ANSWER_BYTES = 2 * 1024 * 1024
"""Of one answer; twenty tools take 20 kB."""

SHOWN_OF_ERROR = 300
"""Characters of what a writer says of its failure."""

FIRST_PAUSE = 2.0
LONGEST_PAUSE = 60.0
"""Between tries of an endpoint that is busy; each pause is twice the one before, and somewhat by chance."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses of a service that is worth asking again."""

COMPLETIONS = "/chat/completions"

NEEDS_MODEL = "ollama"


class WriterError(GatewayError):
    """A writer did not answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a writer, with the tokens that it counted."""

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None


class Writer(Protocol):
    """Something that answers a prompt."""

    @property
    def label(self) -> str:
        """Return the description that the owner sees before anything is sent."""
        ...

    async def write(self, prompt: str) -> Answer:
        """Its answer.

        Raises:
            WriterError: there is none; with the reason, free of secrets.
        """
        ...


@dataclass(frozen=True, slots=True)
class KnownCommand:
    """A program that is known to read a prompt and print an answer, and the variables that it is configured with."""

    command: tuple[str, ...]
    variables: tuple[str, ...] = ()
    """Names; one that ends in `*` means all that begin so."""
    set_to: tuple[tuple[str, str], ...] = ()
    """Variables that it is given besides."""

    @property
    def name(self) -> str:
        """Return the name of the writer."""
        return self.command[0]


KNOWN_COMMANDS = (
    # Without their own tools, servers and projects: they are to write, and what they read is foreign text.
    KnownCommand(
        ("claude", "-p", "--tools", "", "--strict-mcp-config", "--no-session-persistence"),
        ("ANTHROPIC_*", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_*", "AWS_*", "VERTEX_*"),
    ),
    KnownCommand(
        ("codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", "--ephemeral", "--color", "never", "-"),
        ("CODEX_HOME", "CODEX_API_KEY", "OPENAI_*"),
    ),
    # A prompt is appended to what it reads; the folder it runs in is empty, and nothing is approved.
    KnownCommand(
        ("gemini", "-p", "Answer with the JSON object alone."),
        ("GEMINI_*", "GOOGLE_*"),
        (("GEMINI_CLI_TRUST_WORKSPACE", "true"),),
    ),
    KnownCommand(("llm", "--no-log"), ("LLM_*", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")),
    KnownCommand(("ollama", "run"), ("OLLAMA_*",)),
)
"""In the order in which they are offered; the last one needs the name of a model."""


def found_commands(path: str | None = None) -> list[KnownCommand]:
    """Those of the known commands that are installed and need nothing else; none is started."""
    return [each for each in KNOWN_COMMANDS if each.name != NEEDS_MODEL and shutil.which(each.name, path=path)]


class CommandWriter:
    """A command that reads a prompt on its stdin and prints the answer.

    It runs in an empty folder and with few variables, is ended when it takes too long, and so is all that it starts.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], seconds: float, children: Children) -> None:
        """Answer with a command.

        Args:
            command: the program and its arguments.
            env: all of its variables.
            seconds: what one prompt may take.
            children: the child processes of this one.

        Raises:
            ConfigurationError: it is not installed.
        """
        name = str(Path(command[0]).expanduser()) if command[0].startswith("~") else command[0]
        program = shutil.which(name, path=env.get("PATH"))
        if program is None:
            raise ConfigurationError(
                f"{command[0]} is not installed, or not on PATH",
                hint="name another writer with --writer, or its whole path",
            )
        # Whole, for it is started in another folder.
        self._program = str(Path(program).absolute())
        self._command = tuple(command)
        self._env = dict(env)
        self._seconds = seconds
        self._children = children

    @property
    def label(self) -> str:
        """The command line, without what looks like a secret."""
        return shlex.join(map(mask_text, self._command))

    async def write(self, prompt: str) -> Answer:
        """Return the output of the command."""
        name = self._command[0]
        with tempfile.TemporaryDirectory(prefix="pml-enrich-") as folder:
            try:
                with anyio.fail_after(self._seconds):
                    finished = await run_command(
                        (self._program, *self._command[1:]),
                        prompt,
                        env=self._env,
                        folder=Path(folder),
                        max_bytes=MAX_ANSWER_BYTES,
                        children=self._children,
                    )
            except TimeoutError:
                raise WriterError(
                    f"{name} did not answer within {self._seconds:g} seconds", hint="raise enrich.timeout"
                ) from None
            except OutputTooLongError:
                raise WriterError(
                    f"{name} printed more than {MAX_ANSWER_BYTES:,} bytes", hint="it is to print its answer alone"
                ) from None
            except OSError as error:
                raise WriterError(f"{name} cannot be started: {error.strerror or error}") from None
        if finished.exit_code:
            said = _shown(finished.last_words.strip() or finished.output.strip())
            raise WriterError(
                f"{name} ended with exit code {finished.exit_code}{': ' if said else ''}{said}",
                hint=f"try it by itself: echo hello | {self.label}",
            )
        return Answer(finished.output)


class EndpointWriter:
    """A service with the interface of OpenAI's chat completions."""

    def __init__(self, url: str, model: str, key: str | None, seconds: float, *, pause: float = FIRST_PAUSE) -> None:
        """Answer with a service.

        Args:
            url: its base, as `https://api.openai.com/v1`.
            model: the model asked for.
            key: sent as a bearer token.
            seconds: what one prompt may take, with all tries.
            pause: seconds before the second try.
        """
        parts = urlsplit(url)
        path = parts.path.rstrip("/").removesuffix(COMPLETIONS) + COMPLETIONS
        self._url = parts._replace(path=path, fragment="").geturl()
        self._model = model
        self._key = key
        self._seconds = seconds
        self._pause = pause

    @property
    def label(self) -> str:
        """Model and host."""
        parts = urlsplit(self._url)
        return f"{self._model} at {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"

    async def write(self, prompt: str) -> Answer:
        """Return the model's answer; a busy service is asked again."""
        until = time.monotonic() + self._seconds
        pause = self._pause
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}]}
        # Redirects are not followed, and no proxy comes between services of this machine: the key is for this host.
        parts = urlsplit(self._url)
        may_use_proxy = parts.scheme == "https" or parts.hostname not in LOOPBACK_HOSTS
        async with httpx2.AsyncClient(
            headers=headers, timeout=self._seconds, follow_redirects=False, trust_env=may_use_proxy
        ) as client:
            while True:
                try:
                    with anyio.fail_after(max(until - time.monotonic(), 0.01)):
                        status, retry_after, content = await self._post(client, body)
                except TimeoutError:
                    raise WriterError(
                        f"{self.label} did not answer within {self._seconds:g} seconds", hint="raise enrich.timeout"
                    ) from None
                except httpx2.HTTPError as error:
                    status, retry_after, content = 0, "", str(error).encode() or type(error).__name__.encode()
                if status == httpx2.codes.OK:
                    return _answer(content, self.label)
                wait = _seconds(retry_after) or pause * random.uniform(0.8, 1.2)
                is_final = status not in BUSY and status != 0
                if is_final or time.monotonic() + wait > until:
                    said = _shown(_message(content))
                    what = f"answered {status}" if status else "cannot be reached"
                    raise WriterError(
                        f"{self.label} {what}{': ' if said else ''}{said}",
                        hint="see enrich.endpoint, enrich.model and enrich.key",
                    )
                await anyio.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _post(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> tuple[int, str, bytes]:
        async with client.stream("POST", self._url, json=body) as response:
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise WriterError(f"{self.label} answered more than {MAX_ANSWER_BYTES:,} bytes")
            return response.status_code, response.headers.get("retry-after", ""), bytes(content)


def writer_of(
    settings: EnrichSettings,
    children: Children,
    *,
    chosen: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Writer:
    """Return the writer that was chosen or configured, else the first known command that is installed.

    Args:
        settings: what is configured.
        children: the child processes of this one.
        chosen: the name of a known command, or a whole command line.
        environ: where commands and their variables are looked up.

    Raises:
        ConfigurationError: there is none, or it lacks something.
        UsageError: what was chosen is no command line.
        SecretError: a reference cannot be resolved.
    """
    command = _split(chosen) if chosen else settings.command
    if not command and settings.endpoint is not None:
        return _endpoint_writer(settings, environ)
    known = {each.name: each for each in KNOWN_COMMANDS}
    if not command:
        if not (installed := found_commands(environ.get("PATH"))):
            raise ConfigurationError(
                "there is no language model to write with: enrich.command and enrich.endpoint are not set, "
                f"and none of {', '.join(known)} is on PATH",
                hint='name one with --writer "COMMAND", or set enrich.command; pml docs enrich says more',
            )
        command = installed[0].command
    program = known.get(Path(command[0]).name)
    if program is not None and len(command) == 1:
        command = (command[0], *program.command[1:])
    if program is not None and program.name == NEEDS_MODEL and command[1:] == program.command[1:]:
        raise ConfigurationError("ollama needs the name of a model", hint='--writer "ollama run MODEL"')
    patterns = program.variables if program is not None else ()
    own = {name: value for name, value in environ.items() if any(_is_meant(name, each) for each in patterns)}
    given = {name: resolve(value, environ) for name, value in settings.env.items()}
    fixed = dict(program.set_to) if program is not None else {}
    return CommandWriter(command, child_environment(environ, {**own, **fixed, **given}), settings.timeout, children)


def _split(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(
            f"{line!r} is no command line: {error}", hint='write it as in a shell: --writer "llm -m MODEL"'
        ) from None


def is_configured(settings: EnrichSettings) -> bool:
    """Return True if the owner named a writer; otherwise one is detected."""
    return bool(settings.command or settings.endpoint)


def _endpoint_writer(settings: EnrichSettings, environ: Mapping[str, str]) -> EndpointWriter:
    assert settings.endpoint is not None
    if not settings.model:
        raise ConfigurationError("enrich.endpoint needs a model", hint="set enrich.model")
    url = resolve(settings.endpoint, environ)
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
        is_url = parts.hostname is not None and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        is_url = False
    if not is_url:
        raise ConfigurationError(
            "enrich.endpoint is no URL of a service", hint="write for example https://api.openai.com/v1"
        )
    if (settings.key or parts.password) and parts.scheme != "https" and parts.hostname not in LOOPBACK_HOSTS:
        raise ConfigurationError(
            f"enrich.key would be sent to {parts.hostname} unencrypted", hint="use an https URL, or no key"
        )
    key = resolve(settings.key, environ) if settings.key else None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            "enrich.key has characters that no header can hold", hint=f"see what {settings.key} holds"
        )
    return EndpointWriter(url, settings.model, key, settings.timeout)


def _is_meant(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _answer(content: bytes, label: str) -> Answer:
    try:
        answer = json.loads(content)
        text = answer["choices"][0]["message"]["content"]
        usage = answer.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise WriterError(
            f"{label} answered something else than a chat completion", hint="see enrich.endpoint"
        ) from None
    if not isinstance(text, str):
        raise WriterError(f"{label} answered no text")
    return Answer(well_formed(text), *(count if isinstance(count, int) else None for count in counts))


def _message(content: bytes) -> str:
    """Return a service's error message, from its JSON or as plain text."""
    try:
        told = json.loads(content)["error"]
        return str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, RecursionError, LookupError, TypeError):
        return content[:SHOWN_OF_ERROR].decode("utf-8", "replace")


def _seconds(retry_after: str) -> float:
    try:
        return max(0.0, min(float(retry_after), LONGEST_PAUSE))
    except ValueError:
        return 0.0


def _shown(text: str) -> str:
    """Return the end of what a writer said, on one line, without secrets."""
    masked = without_secrets(" ".join(text.split()))
    return masked if len(masked) <= SHOWN_OF_ERROR else "…" + masked[-SHOWN_OF_ERROR:]
