"""What was said in a task and what came of it, kept as lines of JSON; and a model that repeats what was said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agents.model import Message, ModelError, Reply, reply_of
from benchmarks.conversation import compact
from pml_gateway.exposure.token_count import count_tokens

_HANDLE = re.compile(r"ref_[A-Za-z0-9_-]{22}")


@dataclass(slots=True)
class Transcript:
    """One task of one run; tokens are counted by one tokenizer for all models.

    `read` is the context of all requests together, as without a cache, `once` counts each token once.
    """

    way: str
    task: str
    run: int
    listed: int
    requests: int = 0
    calls: int = 0
    read: int = 0
    written: int = 0
    given: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    error: str = ""
    changes: list[list[Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, int]:
        """The way, the task and the run."""
        return (self.way, self.task, self.run)

    @property
    def is_done(self) -> bool:
        """Whether the office was left as asked."""
        return not self.faults and not self.error

    @property
    def once(self) -> int:
        """All that was read and written, each token once."""
        return self.listed + self.given + self.written

    def add_given(self, messages: Iterable[Message]) -> None:
        """Count what the model is given."""
        self.given += sum(count_tokens(str(message["content"])) for message in messages)

    def add_reply(self, reply: Reply) -> None:
        """Count a reply, before which the whole context was read."""
        self.read += self.once
        calls = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
        self.written += count_tokens(reply.text) + sum(count_tokens(compact(call)) for call in calls)
        self.requests += 1
        self.calls += len(calls)
        for name, value in reply.usage.items():
            self.usage[name] = self.usage.get(name, 0) + value


def write_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_transcript(path: Path, transcript: Transcript) -> None:
    """Append a transcript."""
    write_line(path, asdict(transcript))


def read_transcripts(path: Path) -> tuple[dict[str, Any], list[Transcript]]:
    """The head of a file (model, date, settings), and its transcripts.

    Raises:
        ValueError: it is no file of transcripts.
    """
    head, *rest = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if "model" not in head:
        raise ValueError(f"{path} holds no transcripts: its first line names no model")
    return head, [Transcript(**line) for line in rest]


@dataclass(slots=True)
class RecordedModel:
    """Repeats the replies of one transcript; handles of stored results are those of this time."""

    recorded: Transcript
    replies: int = 0

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Give the next recorded reply."""
        said = [message for message in self.recorded.messages if message["role"] == "assistant"]
        if self.replies >= len(said):
            raise ModelError(self.recorded.error or "the transcript ends here")
        text = json.dumps(said[self.replies])
        for old, new in self._handles(messages).items():
            text = text.replace(old, new)
        self.replies += 1
        return reply_of(json.loads(text), len(messages))

    def _handles(self, messages: Sequence[Message]) -> dict[str, str]:
        """Handles that answers gave then, by position, to those that they give now."""
        then = [message for message in self.recorded.messages if message["role"] == "tool"]
        now = [message for message in messages if message["role"] == "tool"]
        found: dict[str, str] = {}
        for old, new in zip(then, now, strict=False):
            pairs = zip(_HANDLE.findall(old["content"]), _HANDLE.findall(new["content"]), strict=False)
            found.update(pairs)
        return found


def differences(recorded: Transcript, now: Transcript) -> list[str]:
    """What came of a task that did not then."""
    then, after = (sorted(json.dumps(change, sort_keys=True) for change in each.changes) for each in (recorded, now))
    gone = [f"no longer: {change}" for change in then if change not in after]
    return gone + [f"new: {change}" for change in after if change not in then]
