from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from tests.parity.server import ParityServer
from tests.support.listening import listening
from tests.support.process import OverStdio, over_stdio, write_settings
from tests.support.raw import MODERN
from tests.support.serving import LIMIT, serving

Path_ = Literal["direct", "full_proxy", "call_tool"]
Era = Literal["handshake", "modern"]
OURS = ("io.modelcontextprotocol/", "pml-gateway/")
"""Metadata that a hop adds: which server answered, and the etag of a result."""


@dataclass(frozen=True)
class Failure:
    """A JSON-RPC error as a client gets it."""

    code: int
    message: str
    data: Any


@dataclass
class Stand:
    """One server, a gateway in front of it, and a client of each era at either."""

    server: ParityServer
    clients: dict[tuple[Era, str], Client]
    logs: list[Any]

    def client(self, era: Era, path: Path_) -> Client:
        """The client that takes a path."""
        return self.clients[era, path]

    async def run(self, action: Callable[[], Awaitable[Any]]) -> Any:
        """What an action of a client gives: the answer as JSON without what hops add, or the error."""

        try:
            with anyio.fail_after(LIMIT):
                result = await action()
        except MCPError as error:
            return Failure(error.error.code, error.error.message, error.error.data)
        return without_ours(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def call(
        self, era: Era, path: Path_, name: str, arguments: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """What a tool answers along a path."""
        given: dict[str, Any] = arguments or {}
        if path == "call_tool":
            name, given = "call_tool", {"name": name, "arguments": given}
        return await self.run(lambda: self.client(era, path).call_tool(name, given, **options))


def without_ours(result: dict[str, Any]) -> dict[str, Any]:
    """An answer without the metadata of hops."""
    meta = {key: value for key, value in (result.get("_meta") or {}).items() if not key.startswith(OURS)}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    """One event loop for all tests of this folder, so that they share the stand."""
    return "asyncio"


@pytest.fixture(
    scope="package", params=["http", *(pytest.param(over, marks=pytest.mark.slow) for over in ("stdio", "bridge"))]
)
async def stand(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Stand]:
    """Started once for the whole suite, for each way to a gateway."""
    async with _stand(tmp_path_factory.mktemp("parity"), request.param) as started:
        yield started


@asynccontextmanager
async def _stand(folder: Path, over: OverStdio | Literal["http"]) -> AsyncIterator[Stand]:
    server, logs = ParityServer(), list[Any]()

    async def elicit(context: Any, params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"name": f"Ada, asked {params.message}"})

    async def sample(context: Any, params: Any) -> mcp_types.CreateMessageResult:
        content = mcp_types.TextContent(type="text", text=f"{params.system_prompt} {params.max_tokens}")
        return mcp_types.CreateMessageResult(role="assistant", content=content, model="m", stop_reason="endTurn")

    async def roots(context: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri="file:///home/ada", name="Ädä")])  # type: ignore[arg-type]

    async def log(params: Any) -> None:
        logs.append((params.level, params.data))

    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(server.scripted.http_app()))
        direct = f"http://127.0.0.1:{port}/mcp"
        entry = {"parity": {"url": direct}}
        # Results are compared as they are, also those that call_tool would answer by reference.
        sections = {"naming": {"prefix": "never"}, "references": {"mode": "workflow"}}
        clients: dict[tuple[Era, str], Client] = {}
        servers: dict[str, Any] = {"direct": direct}
        if over == "http":
            settings = Settings.model_validate({"servers": entry, **sections})
            gateway = (await stack.enter_async_context(serving(folder, {}, settings))).url
            servers |= {"full_proxy": f"{gateway}/full_proxy", "call_tool": f"{gateway}/meta_only"}
        else:
            write_settings(folder, {"servers": entry, **sections})
            for path, mode in (("full_proxy", "full_proxy"), ("call_tool", "meta_only")):
                started = stack.enter_context(over_stdio(over, folder, "--mode", mode))
                servers[path] = StdioServerParameters(**started)
        eras: dict[Era, str] = {"handshake": "legacy", "modern": MODERN}
        for era, mode in eras.items():
            for path, reached in servers.items():
                client = Client(
                    reached,
                    mode=mode,
                    elicitation_callback=elicit,
                    sampling_callback=sample,
                    list_roots_callback=roots,
                    logging_callback=log,
                    cache=None,
                )
                clients[era, path] = await stack.enter_async_context(client)
        yield Stand(server, clients, logs)
