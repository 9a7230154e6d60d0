"""A client's language model as a writer: asked over the owner's socket, in one form, and only where it can be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import GatewayError
from pml_gateway.example_queries.writers import MAX_ANSWER_BYTES, WriterError
from pml_gateway.owner.alone import open_alone
from pml_gateway.owner.client_writer import ClientWriter, client_writer
from pml_gateway.owner.operations import SAMPLE
from pml_gateway.owner.results import WrittenText
from pml_gateway.owner.sockets import ask_socket, sockets
from pml_gateway.serve.runtime import open_runtime
from pml_gateway.serve.sampling import MAX_PROMPT
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from tests.support.asking import Person
from tests.support.memory import MemoryStreams, in_memory, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*is removed as of", "ignore:.*deprecated")]

SECONDS = 20.0
CONFIGURATION = "test"


@asynccontextmanager
async def gateway(folder: Path, configuration: str = CONFIGURATION) -> AsyncIterator[Any]:
    """A gateway with one client as over stdio; gives the client's end of the streams, as a transport of the SDK."""
    upstreams = {"up": ScriptedServer([tool("t")])}
    loaded = LoadedSettings(settings_for(upstreams), origins={}, warnings=(), files=())
    streams = MemoryStreams(upstreams)
    before = set(sockets(paths_in(folder)))
    paths, local = paths_in(folder), LocalClients(alone=True)
    opening = open_runtime(
        loaded, paths, identity=configuration, load=lambda: loaded, open_streams=streams, local=local
    )
    async with open_alone(opening, paths, configuration, local) as runtime:
        await until(lambda: set(sockets(paths_in(folder))) - before)
        yield in_memory(runtime.server)


async def found(folder: Path, seconds: float = SECONDS) -> ClientWriter:
    return await client_writer(paths_in(folder), CONFIGURATION, 100, seconds)


async def asked_of(folder: Path, **question: Any) -> WrittenText:
    [path] = sockets(paths_in(folder))
    return await ask_socket(path, SAMPLE, SECONDS, question)


Sample = Any
"""A callback of the SDK's client."""


@asynccontextmanager
async def sampling(folder: Path, sample: Sample) -> AsyncIterator[ClientWriter]:
    """A writer that is a client which samples so."""
    async with gateway(folder) as transport, Client(transport, mode="legacy", sampling_callback=sample):
        yield await found(folder)


def message(text: str, **more: Any) -> mcp_types.CreateMessageResult:
    content = mcp_types.TextContent(type="text", text=text)
    return mcp_types.CreateMessageResult(role="assistant", content=content, model="m", **more)


async def test_a_client_that_offers_sampling_is_asked_for_one_text_and_nothing_else(tmp_path: Path) -> None:
    asked: list[mcp_types.CreateMessageRequestParams] = []

    async def sample(_: Any, params: mcp_types.CreateMessageRequestParams) -> mcp_types.CreateMessageResult:
        asked.append(params)
        return message("written")

    async with sampling(tmp_path, sample) as writer:
        assert writer.label.startswith("the language model of mcp ")
        assert "where each prompt waits for your approval" in writer.label
        assert (await writer.write("write this")).text == "written"
    [params] = asked
    assert params.model_dump(exclude_none=True, by_alias=True, mode="json") == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "write this"}}],
        "maxTokens": 4096,
        "includeContext": "none",
    }


async def refuses(_: Any, __: Any) -> Any:
    raise MCPError(-1, "User rejected sampling request, token=sk-live-abcdefghijklmnop1234567890 " + "x" * 1000)


async def paints(_: Any, __: Any) -> Any:
    image = mcp_types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    return mcp_types.CreateMessageResult(role="assistant", content=image, model="m")


async def stops_short(_: Any, __: Any) -> Any:
    return message("half of", stop_reason="maxTokens")


async def floods(_: Any, __: Any) -> Any:
    return message("x" * (MAX_ANSWER_BYTES + 1))


async def is_silent(_: Any, __: Any) -> Any:
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (refuses, r"mcp .* refused \(-1\): User rejected"),
        (paints, "answered no text"),
        (stops_short, "cut its answer at 4,096 tokens"),
        (floods, f"more than {MAX_ANSWER_BYTES:,} bytes"),
        (is_silent, r"did not answer within 0\.3 seconds"),
    ],
)
async def test_says_why_a_client_wrote_nothing(tmp_path: Path, sample: Sample, said: str) -> None:
    async with sampling(tmp_path, sample):
        writer = await found(tmp_path, 0.3 if sample is is_silent else SECONDS)
        with pytest.raises(WriterError, match=said) as raised:
            await writer.write("write this")
    assert "sk-live" not in raised.value.message
    assert len(raised.value.message) < 500


async def test_a_question_that_nobody_waits_for_is_withdrawn_and_one_is_asked_at_a_time(tmp_path: Path) -> None:
    asked: list[str] = []
    withdrawn = anyio.Event()

    async def sample(_: Any, params: Any) -> Any:
        asked.append(params.messages[0].content.text)
        if len(asked) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                withdrawn.set()
        return message("second")

    async with sampling(tmp_path, sample) as writer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.write, "first")
            await until(lambda: asked)
            with pytest.raises(WriterError, match="is being asked by another command"):
                await writer.write("meanwhile")
            tasks.cancel_scope.cancel()
        with anyio.fail_after(SECONDS):
            await withdrawn.wait()
            assert (await writer.write("again")).text == "second"
    assert asked == ["first", "again"]


async def test_a_client_that_leaves_before_it_answers_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    asked = anyio.Event()

    async def sample(_: Any, __: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    async def ask(writer: ClientWriter) -> None:
        with pytest.raises(WriterError) as raised:
            await writer.write("write this")
        said.append(raised.value.message)

    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        writer = await stack.enter_async_context(sampling(tmp_path, sample))
        tasks.start_soon(ask, writer)
        await asked.wait()
        await stack.aclose()
    assert "left before it answered" in said[0] or "ended before mcp" in said[0]
    with pytest.raises(WriterError, match="ended before mcp"):
        await writer.write("write this")


async def test_says_which_clients_there_are_and_why_none_can_be_asked(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no gateway runs with test"):
        await found(tmp_path)
    ada = Person("ada")
    async with (
        gateway(tmp_path),
        gateway(tmp_path) as plain,
        gateway(tmp_path) as stateless,
        gateway(tmp_path, "another") as elsewhere,
        serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served,
        Client(plain, mode="legacy"),
        ada.client(stateless, modern=True) as client,
        ada.client(elsewhere, modern=False),
    ):
        await client.list_tools()
        with pytest.raises(GatewayError) as raised:
            await found(tmp_path)
        said = raised.value.message
        assert said.count("gateway ") == 4
        assert "its client has not said yet who it is" in said
        assert "does not offer sampling" in said
        assert "speaks the stateless protocol, in which clients are asked only within their own calls" in said
        assert f" at {served.url}: clients over HTTP can be asked only within their own calls" in said
        assert ada.asked == []
        async with gateway(tmp_path) as able, ada.client(able, modern=False):
            writer = await found(tmp_path)
            assert (await writer.write("who")).text == "ada: who"


CHANGES: tuple[dict[str, Any], ...] = (
    {"prompt": ""},
    {"prompt": "x" * (MAX_PROMPT + 1)},
    {"prompt": [{"role": "user"}]},
    {"max_tokens": 10**9},
    {"max_tokens": "many"},
    {"seconds": 10**9},
    {"tools": []},
    {"systemPrompt": "obey"},
    {"method": "roots/list"},
)


async def test_nothing_else_can_be_asked_over_the_socket(tmp_path: Path) -> None:
    ada = Person("ada")
    question = {"prompt": "who", "max_tokens": 10, "seconds": 5}
    async with gateway(tmp_path) as transport, ada.client(transport, modern=False):
        for changes in CHANGES:
            with pytest.raises(GatewayError, match="this cannot be asked"):
                await asked_of(tmp_path, **{**question, **changes})
        assert ada.asked == []
        assert await asked_of(tmp_path, **question) == {"text": "ada: who"}
