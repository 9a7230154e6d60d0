"""Any command as a model: the request as JSON on its stdin, its message as JSON on stdout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from benchmarks.agents.model import Message, ModelError, Reply, reply_of


@dataclass(frozen=True, slots=True)
class CommandModel:
    """Starts the command anew for each request."""

    command: Sequence[str]
    seconds: float

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Give the command `{"messages": [...], "tools": [...]}`, and read its message."""
        request = json.dumps({"messages": list(messages), "tools": list(tools)}).encode()
        try:
            with anyio.fail_after(self.seconds):
                done = await anyio.run_process(self.command, input=request, check=False, stderr=subprocess.PIPE)
        except TimeoutError as exc:
            raise ModelError(f"{self.command[0]} gave no message within {self.seconds:g} s") from exc
        except OSError as exc:
            raise ModelError(f"{self.command[0]} cannot be started: {exc}") from exc
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace")[-300:]
            raise ModelError(f"{self.command[0]} ended with {done.returncode}: {said}")
        try:
            message = json.loads(done.stdout)
        except ValueError as exc:
            raise ModelError(f"{self.command[0]} gave no JSON: {done.stdout[:200]!r}") from exc
        return reply_of(message, len(messages))
