"""Runs `client.mjs`, a client built on the official TypeScript SDK, and returns what it printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.process import over_stdio, running_gateway, write_settings

from .install import Installation

CLIENT = Path(__file__).with_name("client.mjs")
CLIENT_SECONDS = 120

Step = dict[str, Any]
Over = Literal["stdio", "bridge", "http"]


@dataclass(frozen=True, slots=True)
class TypeScriptClient:
    """One kind of client: what it announces to every server it meets, and the roots it has at first."""

    installation: Installation
    capabilities: dict[str, Any] = field(default_factory=dict)
    roots: Sequence[dict[str, Any]] = ()
    era: str = "2025-11-25"

    def run(self, target: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any]:
        """What came of the steps at a server: `{url}` or `{command, args, env}`."""
        announced = {"capabilities": self.capabilities, "roots": [*self.roots]}
        script = {"era": self.era, "target": target, **announced, "steps": [*steps]}
        return printed_by(self.installation, CLIENT, self.installation.npm, script)


def printed_by(installation: Installation, program: Path, packages: Path, script: dict[str, Any]) -> dict[str, Any]:
    """What a program of ours printed as JSON that runs with these npm packages and takes its script from stdin."""
    done = subprocess.run(
        [installation.node, program, packages],
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


@contextmanager
def gateway_target(over: Over, home: Path, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a target: a gateway of this home, which ends with this context."""
    if over == "http":
        with running_gateway(home, settings) as process:
            yield {"url": process.url}
        return
    write_settings(home, settings)
    with over_stdio(over, home) as entry:
        yield entry
