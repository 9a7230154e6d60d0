"""Clients of the official TypeScript SDK, which all count their requests from 0: every call gets its own answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.field.messages import SERVERS, TOOL
from tests.field.stand import ERAS

from .install import Installation
from .typescript import Over, Step, TypeScriptClient, call, gateway_target

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.field("B10")]

TOGETHER = 12
"""Calls of each client in flight at once; fewer than one client may have at a server that others use as well."""
BEGIN_SECONDS = 60

SETTINGS: dict[str, Any] = {
    "gateway": {"tools_exposure": "full_proxy"},
    "servers": {name: {**entry, "max_concurrent": 8 * TOGETHER} for name, entry in SERVERS.items()},
}


@pytest.fixture(params=ERAS)
def client(request: pytest.FixtureRequest, installation: Installation) -> TypeScriptClient:
    return TypeScriptClient(installation, era=request.param)


def calls(folder: Path, who: str) -> list[Step]:
    """Calls that end once the test allows it, each of which says its own name."""
    names = [f"{who}-{number}" for number in range(TOGETHER)]
    return [
        call(TOOL, say=name, began=str(folder / f"{name}.began"), until=str(folder / f"{name}.until")) for name in names
    ]


def end_backwards(folder: Path, names: Sequence[str]) -> None:
    """Wait until all calls are at the server, and let the last one end first."""
    end = time.monotonic() + BEGIN_SECONDS
    while missing := [name for name in names if not (folder / f"{name}.began").exists()]:
        assert time.monotonic() < end, f"never begun: {missing}"
        threading.Event().wait(0.02)
    for name in reversed(names):
        (folder / f"{name}.until").touch()


@pytest.mark.parametrize(
    ("over", "clients"), [("stdio", 1), ("bridge", 1), ("bridge", 2), ("http", 1), ("http", 2), ("http", 3)]
)
def test_every_call_in_flight_gets_its_own_answer(
    over: Over, clients: int, client: TypeScriptClient, tmp_path: Path
) -> None:
    who = ["abc"[number] for number in range(clients)]
    with gateway_target(over, tmp_path / "home", SETTINGS) as target, ThreadPoolExecutor(clients) as pool:
        running = {
            each: pool.submit(
                client.run,
                target,
                [{"do": "listEveryTool", "with": [TOOL]}, {"do": "together", "with": calls(tmp_path, each)}],
            )
            for each in who
        }
        end_backwards(tmp_path, [f"{each}-{number}" for number in range(TOGETHER) for each in who])
        printed = {each: future.result(BEGIN_SECONDS) for each, future in running.items()}
    for each, of_one in printed.items():
        answers = of_one["results"][1]["result"]["results"]
        said = [json.loads(answer["result"]["content"][0]["text"]) for answer in answers]
        assert said == [f"{each}-{number}" for number in range(TOGETHER)]
