"""A client of the official TypeScript SDK, which refuses a whole result for one fault, gets what servers brought."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.results.test_repair import CASES, PROMPTS, RESOURCES, UNSTRUCTURED
from tests.support import parrot

from .install import Installation
from .typescript import Over, Step, TypeScriptClient, call, gateway_target

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.field("B3")]

SETTINGS: dict[str, Any] = {
    "gateway": {"tools_exposure": "full_proxy"},
    "naming": {"prefix": "never"},
    "servers": {"parrot": {"command": sys.executable, "args": [parrot.__file__]}},
}


@pytest.mark.parametrize("over", ["stdio", "bridge", "http"])
def test_every_result_reaches_a_client_that_checks_each_field(
    tmp_path: Path, installation: Installation, over: Over
) -> None:
    faults = [*CASES.items(), *UNSTRUCTURED.items()]
    steps: list[Step] = [call("say", result=said) for _, (said, *_) in faults]
    steps += [{"do": "readResource", "with": {"uri": parrot.resource_saying(said)}} for said, _ in RESOURCES.values()]
    steps += [
        {"do": "getPrompt", "with": {"name": "said", "arguments": {"result": json.dumps(said)}}}
        for said, _ in PROMPTS.values()
    ]
    client = TypeScriptClient(installation)
    with gateway_target(over, tmp_path, SETTINGS) as target:
        printed = client.run(target, steps)
    results = printed["results"]
    for (fault, (_, blocks, *structured)), answer in zip(faults, results, strict=False):
        assert "error" not in answer, (fault, answer)
        assert answer["result"]["content"] == blocks, fault
        assert answer["result"].get("structuredContent") == (structured[0] if structured else None), fault
    for fault, answer in zip([*RESOURCES, *PROMPTS], results[len(faults) :], strict=True):
        assert "error" not in answer, (fault, answer)
