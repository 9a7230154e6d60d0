"""Runs `client.mjs`, a client built on the official TypeScript SDK, and returns what it printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .install import Installation

CLIENT = Path(__file__).with_name("client.mjs")
CLIENT_SECONDS = 120

Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TypeScriptClient:
    """One kind of client: what it announces to every server it meets, and the roots it has at first."""

    installation: Installation
    capabilities: dict[str, Any] = field(default_factory=dict)
    roots: Sequence[dict[str, Any]] = ()

    def run(self, target: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
        """What came of the steps at a server: `{url}` or `{command, args, env}`."""
        script = {"target": target, "capabilities": self.capabilities, "roots": [*self.roots], "steps": [*steps]}
        done = subprocess.run(
            [self.installation.node, CLIENT, self.installation.npm],
            input=json.dumps(script),
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed


def call(name: str, **arguments: Any) -> Step:
    """A tool call."""
    return {"do": "callTool", "with": {"name": name, "arguments": arguments}}
