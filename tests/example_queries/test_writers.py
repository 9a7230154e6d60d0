"""The language models that may write: commands with few means, and services within limits."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from pml_gateway.config.settings import EnrichSettings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.example_queries.writers import (
    MAX_ANSWER_BYTES,
    Answer,
    CommandWriter,
    EndpointWriter,
    WriterError,
    found_commands,
    writer_of,
)
from pml_gateway.processes.children import Children, open_children
from pml_gateway.secrets.known import KNOWN_SECRETS
from tests.support import fake_writer
from tests.support.raw_http import response

pytestmark = pytest.mark.anyio

PROMPT = '<tools>\n{"id": "1", "name": "send_mail", "description": "Deliver an email."}\n</tools>\n'
SECONDS = 20.0


@pytest.fixture
def children() -> Iterator[Children]:
    with open_children() as opened:
        yield opened


def fake(children: Children, *arguments: object, seconds: float = SECONDS) -> CommandWriter:
    command = (sys.executable, fake_writer.__file__, *map(str, arguments))
    return CommandWriter(command, {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, seconds, children)


async def test_a_command_answers_in_an_empty_folder_with_the_variables_it_is_given(
    children: Children, tmp_path: Path
) -> None:
    answer = await fake(children, "good", tmp_path / "asked").write(PROMPT)
    assert json.loads(answer.text)["1"][0] == "how do i send mail deliver an email"
    told = json.loads((tmp_path / "asked").read_text())
    assert told["prompt"] == PROMPT
    assert told["folder"] == []
    assert set(told["env"]) <= {"PATH", "LANG", "LC_CTYPE"}


async def test_the_last_words_of_a_command_that_fails_are_shown_without_secrets(children: Children) -> None:
    with pytest.raises(WriterError, match="ended with exit code 1") as raised:
        await fake(children, "fails").write(PROMPT)
    assert "not logged in" in raised.value.message
    assert "sk-live" not in raised.value.message
    assert len(raised.value.message) < 500


async def test_a_command_that_hangs_is_ended(children: Children) -> None:
    with pytest.raises(WriterError, match=r"within 0\.3 seconds") as raised:
        await fake(children, "hang", seconds=0.3).write(PROMPT)
    assert raised.value.hint == "raise enrich.timeout"


async def test_a_command_that_prints_without_end_is_ended(children: Children) -> None:
    with pytest.raises(WriterError, match=f"more than {MAX_ANSWER_BYTES:,} bytes"):
        await fake(children, "floods").write(PROMPT)


def test_a_command_that_is_not_there_is_named(children: Children) -> None:
    with pytest.raises(ConfigurationError, match="no-such-program is not installed"):
        writer_of(EnrichSettings(), children, chosen="no-such-program -x", environ={"PATH": "/bin"})


async def test_a_command_may_be_named_from_the_folder_that_one_is_in(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program(tmp_path, "mine")).write_text("#!/bin/sh\ncat > /dev/null; echo written\n")
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": "/usr/bin:/bin"}
    writer = writer_of(EnrichSettings(), children, chosen="./mine", environ=environ)
    assert writer.label == "./mine"
    assert (await writer.write(PROMPT)).text == "written\n"


def program(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_known_commands_are_found_and_not_started(tmp_path: Path, children: Children) -> None:
    for name in ("codex", "llm", "ollama", "other"):
        program(tmp_path, name)
    assert [each.name for each in found_commands(str(tmp_path))] == ["codex", "llm"]
    writer = writer_of(EnrichSettings(), children, environ={"PATH": str(tmp_path)})
    assert writer.label.startswith("codex exec ")


def test_the_choice_wins_over_the_configuration_which_wins_over_what_is_found(
    tmp_path: Path, children: Children
) -> None:
    for name in ("codex", "my-model", "llm", "claude"):
        program(tmp_path, name)
    environ = {"PATH": str(tmp_path)}
    configured = EnrichSettings(command=("my-model", "--quiet"))
    assert writer_of(configured, children, environ=environ).label == "my-model --quiet"
    assert writer_of(configured, children, chosen="llm -m 'a b'", environ=environ).label == "llm -m 'a b'"
    assert writer_of(configured, children, chosen="claude", environ=environ).label.startswith("claude -p --tools ''")
    service = EnrichSettings(endpoint="https://models.example/v1", model="m")
    assert writer_of(service, children, environ=environ).label == "m at https://models.example"


@pytest.mark.parametrize(
    ("settings", "chosen", "said"),
    [
        ({}, None, "no language model to write with"),
        ({"endpoint": "https://models.example/v1"}, None, "needs a model"),
        ({"endpoint": "http://models.example/v1", "model": "m", "key": "${env:KEY}"}, None, "unencrypted"),
        ({}, "ollama", "needs the name of a model"),
        ({}, "ollama run", "needs the name of a model"),
        ({}, "claude 'not closed", "quotation"),
        ({"endpoint": "http://joe:sesame@models.example/v1", "model": "m"}, None, "unencrypted"),
        ({"endpoint": "https://models.example:port/v1", "model": "m"}, None, "no URL of a service"),
        ({"endpoint": "https://models.example:99999/v1", "model": "m"}, None, "no URL of a service"),
        ({"endpoint": "http://[::1/v1", "model": "m"}, None, "no URL of a service"),
        ({"endpoint": "https:///v1", "model": "m"}, None, "no URL of a service"),
        ({"endpoint": "https://models.example/v1", "model": "m", "key": "${env:ODD}"}, None, "enrich.key"),
        ({"endpoint": "https://models.example/v1", "model": "m", "key": "${env:LINES}"}, None, "enrich.key"),
    ],
)
def test_says_what_a_writer_lacks(
    settings: dict[str, Any], chosen: str | None, said: str, children: Children, tmp_path: Path
) -> None:
    environ = {"PATH": str(tmp_path), "KEY": "x", "ODD": "kéy-sesame", "LINES": "a-key\nX-Other: sesame"}
    with pytest.raises(ConfigurationError, match=said) as raised:
        writer_of(EnrichSettings(**settings), children, chosen=chosen, environ=environ)
    assert "sesame" not in str(raised.value)


def test_what_is_shown_of_a_command_has_no_key(children: Children, tmp_path: Path) -> None:
    program(tmp_path, "curl")
    chosen = "curl -H 'Authorization: Bearer sk-live-0123456789abcdefABCDEF0123' https://joe:sesame@models.example"
    label = writer_of(EnrichSettings(), children, chosen=chosen, environ={"PATH": str(tmp_path)}).label
    assert label.startswith("curl -H ")
    assert "sk-live" not in label
    assert "sesame" not in label


async def test_a_program_beside_the_folder_one_stands_in_is_found(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "mine").write_text("#!/bin/sh\necho it is I\n")
    monkeypatch.chdir(tmp_path)
    writer = writer_of(EnrichSettings(), children, chosen="./mine", environ={"PATH": "/usr/bin:/bin"})
    assert await writer.write(PROMPT) == Answer("it is I\n")


def test_a_command_line_that_is_none_is_named(children: Children) -> None:
    with pytest.raises(UsageError, match="""'claude "-p' is no command line"""):
        writer_of(EnrichSettings(), children, chosen='claude "-p')


async def test_a_known_command_gets_its_own_variables_and_no_others(tmp_path: Path, children: Children) -> None:
    file = tmp_path / "bin" / "llm"
    file.parent.mkdir()
    command = shlex.join([sys.executable, fake_writer.__file__, "good", str(tmp_path / "asked")])
    file.write_text(f"#!/bin/sh\nexec {command}\n")
    file.chmod(0o755)
    environ = {"PATH": f"{file.parent}:/usr/bin:/bin", "LLM_USER_PATH": "/x", "GITHUB_TOKEN": "t", "MINE": "m"}
    settings = EnrichSettings(env={"EXTRA": "${env:MINE}"})
    await writer_of(settings, children, chosen="llm", environ=environ).write(PROMPT)
    given = set(json.loads((tmp_path / "asked").read_text())["env"])
    assert {"PATH", "LLM_USER_PATH", "EXTRA"} <= given
    assert not {"GITHUB_TOKEN", "MINE"} & given


Handle = Callable[[dict[str, Any], dict[str, str]], bytes]


@asynccontextmanager
async def service(handle: Callable[[dict[str, Any], dict[str, str]], Awaitable[bytes]]) -> AsyncIterator[str]:
    """A service on a free port that answers by `handle`, from the body and the headers of a request."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            head = (await reader.receive_until(b"\r\n\r\n", 100_000)).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.receive_exactly(int(headers["content-length"]))
            await stream.send(await handle({"path": head[0].split()[1], **json.loads(body)}, headers))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


def completion(text: object, **more: object) -> bytes:
    return response(json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}], **more}).encode())


def endpoint(url: str, key: str | None = None, seconds: float = SECONDS) -> EndpointWriter:
    return EndpointWriter(url, "tiny", key, seconds, pause=0.001)


async def test_a_service_is_asked_for_a_chat_completion() -> None:
    asked: list[Any] = []

    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        asked.append((body, headers.get("authorization")))
        return completion("an answer", usage={"prompt_tokens": 12, "completion_tokens": 3})

    async with service(handle) as url:
        answer = await endpoint(url, "sesame").write(PROMPT)
        assert await endpoint(url + "/chat/completions").write("b") == Answer("an answer", 12, 3)
        await endpoint(url + "/?version=2#part").write("b")
    assert answer == Answer("an answer", 12, 3)
    path = "/v1/chat/completions"
    assert asked[0] == (
        {"path": path, "model": "tiny", "messages": [{"role": "user", "content": PROMPT}]},
        "Bearer sesame",
    )
    assert asked[1][0]["path"] == path
    assert asked[1][1] is None
    assert asked[2][0]["path"] == f"{path}?version=2"


async def test_what_no_encoding_holds_is_no_part_of_an_answer() -> None:
    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return completion("half \ud83d a smile")

    async with service(handle) as url:
        assert await endpoint(url).write(PROMPT) == Answer("half ? a smile")


async def test_a_service_of_this_machine_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return completion("not through others")

    async with service(handle) as url:
        assert await endpoint(url, "sesame").write(PROMPT) == Answer("not through others")


async def test_a_busy_service_is_asked_again() -> None:
    answers = [
        response(b"{}", status="429 Too Many Requests", retry_after="0"),
        response(b"", status="503 Busy"),
        completion("at last"),
    ]

    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return answers.pop(0)

    async with service(handle) as url:
        assert await endpoint(url).write(PROMPT) == Answer("at last")


async def test_a_service_that_stays_busy_is_given_up_in_time() -> None:
    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return response(b'{"error": {"message": "come back later"}}', status="429 Busy", retry_after="50")

    async with service(handle) as url:
        with pytest.raises(WriterError, match="answered 429: come back later"):
            await endpoint(url).write(PROMPT)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            response(b'{"error": {"message": "wrong key sesame-sesame"}}', status="401 No"),
            r"answered 401: wrong key \*",
        ),
        (response(b"", status="307 Elsewhere", location="http://127.0.0.1:1/"), "answered 307"),
        (response(b"<html>"), "something else than a chat completion"),
        (response(b'{"choices": []}'), "something else than a chat completion"),
        (completion(None), "no text"),
        (response(b" " * (MAX_ANSWER_BYTES + 1)), "more than"),
        (b"", "cannot be reached"),
    ],
)
async def test_says_what_is_wrong_with_a_service(answer: bytes, said: str) -> None:
    KNOWN_SECRETS.remember("sesame-sesame")

    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return answer

    async with service(handle) as url:
        with pytest.raises(WriterError, match=said):
            await EndpointWriter(url, "tiny", None, SECONDS, pause=2 * SECONDS).write(PROMPT)


async def test_a_service_that_is_silent_is_given_up() -> None:
    async def handle(body: dict[str, Any], headers: dict[str, str]) -> bytes:
        await anyio.sleep_forever()
        raise AssertionError

    async with service(handle) as url:
        with pytest.raises(WriterError, match=r"within 0\.2 seconds"):
            await endpoint(url, seconds=0.2).write(PROMPT)
