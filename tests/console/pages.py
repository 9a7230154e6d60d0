"""A console in front of a gateway of the test, asked by a client without a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
from starlette.applications import Starlette

from pml_gateway.config.findings import Finding
from pml_gateway.config.load import LoadedSettings, load_settings
from pml_gateway.console.access import ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.errors import GatewayError
from pml_gateway.local.serving_processes import ServingProcesses, status_as_json
from pml_gateway.owner.alone import AloneProcess
from pml_gateway.owner.answering import AskedOperation, answer_of
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.operations import OfGateway
from pml_gateway.paths import Paths
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving

NOTHING: Mapping[str, str] = MappingProxyType({})

BASE = "http://127.0.0.1:7000"


@dataclass(frozen=True)
class ServingSource:
    """The source of pages: the owner's operations on the gateway of a test."""

    served: Serving
    folder: Path

    @property
    def identity(self) -> str:
        """Return the configuration that the gateway of the test records."""
        return "test"

    @property
    def paths(self) -> Paths:
        """Return the paths of the gateway's files."""
        paths: Paths = paths_in(self.folder)
        return paths

    def load(self) -> LoadedSettings:
        """Return the settings in force."""
        return LoadedSettings(self.served.gateway.state.settings, origins={}, warnings=(), files=())

    async def status(self) -> dict[str, Any]:
        """Return what `pml status --json` prints of this process."""
        report = await AloneProcess(self.served.runtime, "test").status()
        return status_as_json(ServingProcesses(None, [report], []))

    async def approvals(self) -> list[dict[str, Any]]:
        """Return the calls that wait for the owner."""
        process = AloneProcess(self.served.runtime, "test")
        rows = (await process.approvals())["approvals"]
        found = [(await process.approval(row["id"]))["approval"] for row in rows if row["state"] == "pending"]
        return [each for each in found if each is not None]

    async def examine(self) -> list[Finding]:
        """Return that all is well."""
        return []

    async def ask(self, operation: OfGateway[Any], arguments: Mapping[str, Any], *, mode: str | None = None) -> Any:
        """Return the result of an operation; this gateway has one mode."""
        context = OperationContext(self.served.gateway, paths_in(self.folder), "test")
        answer = await answer_of(AskedOperation(name=operation.name, arguments=dict(arguments)), context)
        if "error" in answer:
            raise GatewayError(answer["error"]["message"], hint=answer["error"].get("hint"))
        return operation.decoded(answer["result"])


@dataclass(frozen=True)
class NothingRuns:
    """The source of pages if no gateway runs."""

    folder: Path
    identity: str = "test"
    found: list[Finding] = field(default_factory=list)

    @classmethod
    def with_configuration(cls, folder: Path, text: str) -> NothingRuns:
        """Return one whose user has a configuration."""
        source = cls(folder)
        source.paths.config_file.parent.mkdir(parents=True, exist_ok=True)
        source.paths.config_file.write_text(text)
        return source

    @property
    def paths(self) -> Paths:
        """Return the paths of the gateway's files."""
        paths: Paths = paths_in(self.folder)
        return paths

    def load(self) -> LoadedSettings:
        """Return the settings of the user's file."""
        file = self.paths.config_file
        return load_settings(config_file=file if file.exists() else None, environ={"PML_HOME": str(self.folder)})

    async def status(self) -> dict[str, Any]:
        """Return that nothing runs."""
        return {"machine": None, "gateways": [], "errors": [], "servers": []}

    async def approvals(self) -> list[dict[str, Any]]:
        """Return that nothing waits."""
        return []

    async def examine(self) -> list[Finding]:
        """Return what a test has found."""
        return self.found

    async def ask(self, operation: OfGateway[Any], arguments: Mapping[str, Any], *, mode: str | None = None) -> Any:
        """Refuse."""
        raise GatewayError("no gateway runs")


@dataclass(frozen=True)
class Visitor:
    """A client that has opened the link of a console, whatever the console shows."""

    client: httpx2.AsyncClient
    access: ConsoleAccess

    async def page(self, path: str, **options: Any) -> httpx2.Response:
        """Return the answer for a page below the root."""
        return await self.client.get(f"{self.access.root}/{path}", **options)

    async def do(
        self, change: str, values: Mapping[str, str] = NOTHING, headers: Mapping[str, str] = NOTHING
    ) -> httpx2.Response:
        """Send a form of a page."""
        return await self.client.post(
            f"{self.access.root}/do/{change}",
            data={"token": self.access.form_token} | dict(values),
            headers={"Origin": BASE} | dict(headers),
        )


@dataclass(frozen=True)
class Browser(Visitor):
    """A client that has opened the link of a console in front of a gateway."""

    served: Serving

    @property
    def root(self) -> str:
        """Return the path of all pages."""
        return self.access.root


def visitor(app: Starlette) -> httpx2.AsyncClient:
    """Return a client without a cookie."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE)


@asynccontextmanager
async def console(folder: Path, upstreams: Mapping[str, ScriptedServer], **sections: Any) -> AsyncIterator[Browser]:
    """Open a console in front of these servers."""
    async with serving(folder, upstreams, **sections) as served, console_of(served, folder) as browser:
        yield browser


@asynccontextmanager
async def console_of(served: Serving, folder: Path) -> AsyncIterator[Browser]:
    """Open a console in front of a gateway with its files in a folder."""
    access = ConsoleAccess()
    async with visitor(Console(ServingSource(served, folder), access).app()) as client:
        opened = await client.get(access.new_link())
        assert opened.status_code == 303
        yield Browser(client, access, served)


def hidden_fields(page: str, change: str = "") -> dict[str, str]:
    """Return the hidden fields of the first form of a page that asks for a change, or for this one."""
    return next(fields for name, fields in forms(page) if change in ("", name))


def forms(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return the forms of a page that change something: the change, and the hidden fields."""
    found = re.findall(r'<form method="post" action="[^"]*/do/(\w+)"(.*?)</form>', page, re.DOTALL)
    hidden = r'<input type="hidden" name="([^"]+)" value="([^"]*)"'
    return [(name, {key: unescape(value) for key, value in re.findall(hidden, inside)}) for name, inside in found]


def form_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the only form of a page."""
    [(_, fields)] = forms(page)
    return fields


@asynccontextmanager
async def opened_by(source: NothingRuns) -> AsyncIterator[Visitor]:
    """Open a console that shows a source."""
    access = ConsoleAccess()
    async with visitor(Console(source, access).app()) as client:
        await client.get(access.new_link())
        yield Visitor(client, access)
