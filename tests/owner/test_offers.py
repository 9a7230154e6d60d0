from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.owner.answers.prompts_and_resources import offers
from pml_gateway.owner.context import OperationContext
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

KEY = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


async def test_why_a_server_offers_nothing_is_told_without_its_keys(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("t")])}
    servers = {"up": {"command": "in-memory"}, "gone": {"command": f"no-such-command-{KEY}"}}
    settings = Settings.model_validate({"servers": servers, "gateway": {"meta_tools": ["gateway_info"]}})
    async with serving(tmp_path, upstreams, settings) as served:
        context = OperationContext(served.gateway, paths_in(tmp_path), "")
        failed = (await offers(context, ["prompts"]))["failed"]
        assert "gone" in failed
        assert KEY not in failed["gone"]
        told = await served.call("gateway_info", {"section": "upstreams"})
        assert "cannot be started" in str(told)
        assert KEY not in str(told)
