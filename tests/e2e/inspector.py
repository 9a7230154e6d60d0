"""Runs the official MCP Inspector's command line and returns what it printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from .install import Installation

INSPECTOR_SECONDS = 60


class InspectorError(Exception):
    """The inspector could not complete the request: its exit code and its error object."""

    def __init__(self, exit_code: int, error: dict[str, Any]) -> None:
        super().__init__(f"inspector ended with {exit_code}: {error.get('code')}: {error.get('message')}")
        self.exit_code = exit_code
        self.error = error


class Inspector:
    """`inspector --cli` against one server: a URL, a command with arguments, or `pml` of a client's file."""

    def __init__(
        self,
        installation: Installation,
        home: Path,
        target: str | Sequence[str] | Path,
        *,
        era: Literal["legacy", "auto", "modern"] = "legacy",
        headers: Mapping[str, str] | None = None,
        path: str | None = None,
    ) -> None:
        self._program = [str(installation.node), str(installation.script("@modelcontextprotocol/inspector")), "--cli"]
        self._options = ["--format", "json", "--quiet", "--protocol-era", era]
        for name, value in (headers or {}).items():
            self._options += ["--header", f"{name}: {value}"]
        # Only after `--` does the inspector leave options such as --config to the server's own command.
        match target:
            case str():
                self._target = ["--server-url", target, "--transport", "http"]
            case Path():
                self._target = ["--config", str(target), "--server", "pml"]
            case _:
                self._target = ["--", *target]
        # The inspector keeps its catalog and logins below HOME. It hands a stdio server HOME and PATH, nothing else.
        self._environment = {"HOME": str(home), "PATH": path or f"{installation.node.parent}:/usr/bin:/bin"}

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools of `tools/list`, as the inspector received them."""
        tools: list[dict[str, Any]] = self.run("--method", "tools/list")["tools"]
        return tools

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of `tools/call`. The inspector lists first and refuses a name that is not listed."""
        given = json.dumps(arguments)
        return self.run("--method", "tools/call", "--tool-name", name, "--tool-args-json", given)

    def run(self, *options: str) -> dict[str, Any]:
        """The `result` of one inspector run; an `isError` result is a result, although the inspector exits with 5."""
        done = subprocess.run(
            [*self._program, *self._options, *options, *self._target],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSPECTOR_SECONDS,
            check=False,
        )
        if done.stdout.strip():
            result: dict[str, Any] = json.loads(done.stdout)["result"]
            return result
        raise InspectorError(done.returncode, _error(done.stderr))


def _error(stderr: str) -> dict[str, Any]:
    for line in stderr.splitlines():
        if line.startswith('{"error"'):
            error: dict[str, Any] = json.loads(line)["error"]
            return error
    return {"code": "none", "message": stderr.strip()}
