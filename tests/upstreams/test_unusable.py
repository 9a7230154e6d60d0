"""Servers that cannot start as they are configured: nobody is told to try again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.errors import ErrorCode, UpstreamUnusableError
from pml_gateway.gateway.gateway import open_gateway
from tests.support.memory import paths_in

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "no-such-command-at-all"}, "cannot be started"),
        ({"command": "sh", "cwd": "/no/such/folder"}, "does not exist"),
        ({"command": "sh", "env": {"A": "${env:PML_TEST_MISSING}"}}, "PML_TEST_MISSING is not set"),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"A": "${env:PML_TEST_MISSING}"}}, "PML_TEST_MISSING is not set"),
    ],
)
async def test_what_only_the_operator_can_put_right_is_not_worth_trying_again(
    tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    settings = Settings.model_validate({"servers": {"up": entry}})
    async with open_gateway(settings, paths_in(tmp_path), identity="test") as gateway:
        upstream = gateway.pool.upstreams["up"]
        with anyio.fail_after(30):
            await upstream.settled.wait()
        # The second is refused without an attempt, for the same reason.
        for _ in range(2):
            with pytest.raises(UpstreamUnusableError, match=words) as caught:
                await upstream.request("tools/call", {"name": "t"}, timeout=20)
            assert (caught.value.code, caught.value.retryable) == (ErrorCode.UPSTREAM_UNAVAILABLE, False)
            assert caught.value.details["executed"] == "no"
            assert caught.value.hint
