"""What servers say that they were started with: their variables, folder and arguments, or why they were not started.

As a program, it asks them of a gateway in its own process, which runs in the folder and with the variables of that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.working_directory import WorkingDirectory
from tests.support.memory import paths_in

SCRIPT = Path(__file__).with_name("raw_stdio.py")


async def told(
    servers: dict[str, Any], home: Path, working_directory: WorkingDirectory | None = None
) -> dict[str, Any]:
    """What each of these servers says; they are `raw_stdio tells`."""
    settings = Settings.model_validate({"servers": servers, "upstreams": {"connect_timeout": 40}})
    said: dict[str, Any] = {}
    async with open_gateway(
        settings, paths_in(home), identity="t", connect=False, working_directory=working_directory
    ) as gateway:
        for name, upstream in gateway.pool.upstreams.items():
            try:
                answer = await upstream.request("tools/call", {"name": "t", "arguments": {}}, timeout=60)
                said[name] = json.loads(answer["content"][0]["text"])
            except GatewayError as error:
                said[name] = str(error)
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(told, json.loads(sys.argv[1]), Path(sys.argv[2]))))
