"""Which servers could not start is told without starting any: by the configuration, a gateway, a login, one request."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile
from pml_gateway.config.settings import Settings
from pml_gateway.setup.readiness import unready
from pml_gateway.upstreams.auth.login import log_in
from pml_gateway.upstreams.auth.logins import LoginStore
from tests.support.authorization import protected
from tests.support.listening import listening
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

COMMAND = {"command": sys.executable}
SECRET = "hunter2-hunter2"


async def reasons(folder: Path, servers: dict[str, Any]) -> dict[str, str]:
    settings = Settings.model_validate({"servers": servers})
    return await unready(settings, servers, paths_in(folder), "test", os.environ)


async def test_what_is_written_down_is_enough_for_servers_that_lack_something(tmp_path: Path) -> None:
    found = await reasons(
        tmp_path,
        {
            "fine": COMMAND,
            "off": {**COMMAND, "enabled": False},
            "unset": {**COMMAND, "env": {"KEY": "${env:PML_TEST_NEVER_SET}"}},
            "missing": {"command": "/no/such/program"},
            "folder": {**COMMAND, "cwd": "/no/such/folder"},
            "login": {"url": "http://127.0.0.1:1/mcp", "auth": {}},
        },
    )

    assert list(found) == ["off", "unset", "missing", "folder", "login"]
    assert found["off"] == "it is disabled in the gateway (servers.off.enabled)"
    assert "PML_TEST_NEVER_SET is not set" in found["unset"]
    assert "/no/such/program is not found" in found["missing"]
    assert "/no/such/folder does not exist" in found["folder"]
    assert found["login"] == "needs a login; pml upstreams login login"


async def test_a_running_gateway_knows_more(tmp_path: Path) -> None:
    servers = {"up": COMMAND, "down": COMMAND}
    upstreams = {"up": ScriptedServer([tool("t")]), "down": ScriptedServer([], refuse=True)}
    for new_servers in ("accept", "review"):
        home = tmp_path / new_servers
        settings = Settings.model_validate({"servers": servers, "trust": {"new_servers": new_servers}})
        async with serving(home, upstreams, settings):
            await until(lambda home=home: [*(home / "run").glob("*.sock")])
            found = await reasons(home, servers)

        assert "nothing listens" in found["down"]
        held = {"up": "2 definitions held back; pml trust"} if new_servers == "review" else {}
        assert {name: reason for name, reason in found.items() if name == "up"} == held
        # Without it, nothing is known against them.
        assert await reasons(home, servers) == {}


async def test_of_a_url_of_which_nothing_is_known_one_request_is_made(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def answering(status: int) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            asked.append(dict(scope["headers"]).get(b"authorization", b""))
            await Response(status_code=status)(scope, receive, send)

        return app

    public = ScriptedServer([tool("t")])
    closed, refusing, gone = answering(401), answering(403), answering(404)
    async with listening(closed) as one, listening(refusing) as two, listening(gone) as three:
        url = "http://127.0.0.1:{}/mcp?api_key=" + SECRET
        servers: dict[str, Any] = {
            "closed": {"url": url.format(one)},
            "refusing": {"url": url.format(two), "headers": {"Authorization": f"Bearer {SECRET}"}},
            "gone": {"url": url.format(three)},
            "nobody": {"url": url.format(1)},
        }
        found = await reasons(tmp_path, servers)
        assert found["closed"] == "needs a login; pml upstreams login closed"
        assert found["refusing"].startswith("it refuses its configured headers (HTTP 403)")
        assert found["gone"] == "it answers with HTTP 404"
        assert found["nobody"].startswith("it cannot be reached")
        assert SECRET not in str(found)
        assert sorted(asked) == [b"", b"", f"Bearer {SECRET}".encode()]

        # What was listed with this very definition is known to start, and asked nothing.
        settings = Settings.model_validate({"servers": servers})
        entry = ManifestEntry(settings.servers["closed"].fingerprint(), ({"name": "t"},), 1.0)
        file = ManifestFile(paths_in(tmp_path).manifest_dir, "test", settings.naming.prefix)
        file.save(Manifest({"closed": entry}))
        assert await reasons(tmp_path, {"closed": servers["closed"]}) == {}
        assert len(asked) == 3
    async with listening(public.http_app()) as port:
        assert await reasons(tmp_path, {"public": {"url": f"http://127.0.0.1:{port}/mcp"}}) == {}
    assert public.opened == 0


async def test_a_login_is_enough(tmp_path: Path) -> None:
    async with protected() as stand:
        servers = {"remote": {"url": stand.url}}
        assert list(await reasons(tmp_path, servers)) == ["remote"]
        settings = Settings.model_validate({"servers": servers})
        paths = paths_in(tmp_path)
        await log_in("remote", settings.servers["remote"], LoginStore(paths.auth_dir), stand.browse, timeout=20)
        assert await reasons(tmp_path, servers) == {}
