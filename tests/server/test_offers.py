"""Prompts, resources and completions pass through the gateway as if it were not there, for those who may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.offering import OfferingUpstream, prompt, resource, template
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


class Asking:
    """One client of either era."""

    def __init__(self, served: Serving, version: str, **options: Any) -> None:
        self.served, self.version, self.options = served, version, options

    async def message(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The whole answer, result or error."""
        if self.version == "2026-07-28":
            headers = {"mcp-name": str((params or {})["uri"])} if "uri" in (params or {}) else {}
            return await self.served.message(method, params, headers=headers, **self.options)
        from tests.support.raw import decoded

        async with self.served.handshake(version=self.version, **self.options) as session:
            return decoded(await anyio.to_thread.run_sync(lambda: session.send(method, params)))

    async def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result of a request that must succeed."""
        message = await self.message(method, params)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["old upstream", "new upstream"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_everything_offered_is_listed_and_answers(tmp_path: Path, version: str, modern: bool) -> None:
    upstream = OfferingUpstream(
        modern=modern,
        page_size=2,
        prompts=[prompt(f"p{index}", arguments=[{"name": "a", "required": True}]) for index in range(5)],
        resources=[resource("file:///a", size=3, mimeType="text/plain", annotations={"priority": 0.5})],
        templates=[template("file:///{name}")],
        unlisted={"file:///b"},
    )
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(10)
        ask = Asking(served, version)
        prompts = (await ask.result("prompts/list"))["prompts"]
        assert [each["name"] for each in prompts] == ["p0", "p1", "p2", "p3", "p4"]
        listed = (await ask.result("resources/list"))["resources"]
        assert listed == [
            {"uri": "file:///a", "name": "a", "size": 3, "mimeType": "text/plain", "annotations": {"priority": 0.5}}
        ]
        templates = await ask.result("resources/templates/list")
        assert templates["resourceTemplates"][0]["uriTemplate"] == "file:///{name}"
        got = await ask.result("prompts/get", {"name": "p3", "arguments": {"a": "1"}})
        assert got["messages"][0]["content"]["text"] == "up p3 [('a', '1')]"
        for uri in ("file:///a", "file:///b"):
            assert (await ask.result("resources/read", {"uri": uri}))["contents"] == [{"uri": uri, "text": f"up {uri}"}]
        ref = {"type": "ref/resource", "uri": "file:///{name}"}
        completed = await ask.result("completion/complete", {"ref": ref, "argument": {"name": "name", "value": ""}})
        assert completed["completion"]["values"] == ["up", "file:///{name}"]
        modern_fields = {"resultType", "ttlMs", "cacheScope"}
        assert modern_fields & templates.keys() == (modern_fields if version == "2026-07-28" else set())
