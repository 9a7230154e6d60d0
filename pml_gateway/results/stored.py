"""Stored results without their values: their answers for clients, and their records in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pml_gateway.results.content import MAX_MIME, Kind
from pml_gateway.results.encoding import shown_at_most
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

MAX_ANSWER = 880
"""Maximum bytes of an answer as text inside JSON; with the structured content, both take less than 2,000."""

SIZES = (160, 110, 80, 55, 40, 25, 12)
"""Characters of each part of a preview; the largest size that fits is used."""

SHORTEST = 24

BOOKKEEPING_BYTES = 1600
"""Bytes that a result takes in this process besides its value and record: keys, times, and the objects that hold them.
Measured; without it, thousands of results that compress to nothing would take many times `references.max_bytes`."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a result; `tool` is the upstream's id and its own name of the tool.

    Args:
        tool: None if the gateway made the value itself, for example in a transform step.
        name: the tool as clients see it, or the gateway's operation.
        inputs: the shape of the arguments, or the arguments if `activity.arguments` keeps them.
        refs: references in the arguments.
        status: `ok` or `error`.
        at: Unix seconds when the call began.
        seconds: duration of the call.
        run: what groups several results, for example a workflow and its step.
        made_from: the tools whose results the gateway made this value from.
    """

    tool: tuple[str, str] | None
    name: str
    inputs: str = ""
    refs: tuple[str, ...] = ()
    status: str = "ok"
    at: float = 0.0
    seconds: float = 0.0
    run: str = ""
    made_from: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A stored result: its handle, sizes, hash, shape, preview and source. `expires_at` is in Unix seconds.

    `bytes` is the size of the value, `stored_bytes` what counts towards `references.max_bytes`.
    """

    ref: str
    content_kind: Kind
    mime: str | None
    tokens: int
    bytes: int
    sha256: str
    shape: str
    preview: JsonObject
    reads_on: JsonObject
    expires_at: float
    source: Source
    parts: int = 0
    stored_bytes: int = field(default=0)

    def answer(self) -> JsonObject:
        """Return the answer that replaces the value, always small: its description, a preview, and how to read it."""
        for size in SIZES:
            answer = self._answer(shortened(self.shape, 2 * size), _cut(self.preview, size), self._next())
            # Encoded twice, as it is inside the text block.
            if len(json.dumps(json.dumps(answer, ensure_ascii=False), ensure_ascii=False).encode()) <= MAX_ANSWER:
                return answer
        return self._answer(shortened(self.shape, SHORTEST), {}, f'read_result {{"ref": "{self.ref}"}}')

    def brief(self) -> JsonObject:
        """Return only what is needed to read or pass on the value, for answers with no room for more."""
        return {"ref": self.ref, "tokens": self.tokens}

    def _answer(self, shape: str, preview: JsonObject, following: str) -> JsonObject:
        return {
            "ref": self.ref,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "shape": shape,
            "preview": preview,
            "next": following,
            "expires_at": timestamp(self.expires_at),
            **({"mime": shortened(self.mime, MAX_MIME)} if self.mime else {}),
        }

    def _next(self) -> str:
        """Return the call that reads on."""
        call = f"read_result {json.dumps({'ref': self.ref, **self.reads_on}, ensure_ascii=False)}"
        return call if self.content_kind == "binary" else f'{call}, or with "search": "text"'


def _cut(preview: JsonObject, size: int) -> JsonObject:
    """Shorten each part of a preview to about `size` characters; of the end of a text, keep the end."""
    cut: JsonObject = {}
    for at, part in preview.items():
        if isinstance(part, list):
            cut[at] = [shown_at_most(item, size) for item in part]
        elif isinstance(part, dict):
            cut[at] = {shortened(key, size): shown_at_most(member, size) for key, member in part.items()}
        elif isinstance(part, str):
            is_end, length = at == "last", 3 * size // 4 if at == "last" else 5 * size // 4
            whole = len(part) <= length
            cut[at] = part if whole else f"…{part[-length:]}" if is_end else shortened(part, length)
        else:
            cut[at] = part
    return {at: part for at, part in cut.items() if part not in ([], {})}


def timestamp(seconds: float) -> str:
    """Format Unix seconds as an ISO 8601 time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_head(stored: StoredResult) -> JsonObject:
    """Encode the stored result as JSON, without its handle, which only its client knows."""
    source = stored.source
    return {
        "kind": stored.content_kind,
        "mime": stored.mime,
        "tokens": stored.tokens,
        "bytes": stored.bytes,
        "sha256": stored.sha256,
        "shape": stored.shape,
        "preview": stored.preview,
        "reads_on": stored.reads_on,
        "expires_at": stored.expires_at,
        "parts": stored.parts,
        "stored_bytes": stored.stored_bytes,
        "tool": list(source.tool) if source.tool else None,
        "made_from": [list(tool) for tool in source.made_from],
        "source": [source.name, source.inputs, list(source.refs), source.status, source.at, source.seconds, source.run],
    }


def kept_bytes(stored: StoredResult, packed_bytes: int) -> int:
    """Return the bytes counted for a result whose value was packed into `packed_bytes`."""
    return packed_bytes + len(json.dumps(to_head(stored))) + BOOKKEEPING_BYTES


def from_head(head: JsonObject, ref: str) -> StoredResult:
    """Return the stored result that `to_head` encoded as `head`."""
    tool: Any = head["tool"]
    name, inputs, refs, status, at, seconds, run = head["source"]
    made_from = tuple((str(upstream_id), str(own)) for upstream_id, own in head.get("made_from", ()))
    return StoredResult(
        ref=ref,
        content_kind=head["kind"],
        mime=head["mime"],
        tokens=head["tokens"],
        bytes=head["bytes"],
        sha256=head["sha256"],
        shape=head["shape"],
        # Earlier versions stored a text only.
        preview=head["preview"] if isinstance(head["preview"], dict) else {"first": head["preview"]},
        reads_on=head.get("reads_on", {}),
        expires_at=head["expires_at"],
        source=Source(
            tuple(tool) if tool else None,
            name,
            inputs,
            tuple(refs),
            status,
            at,
            seconds,
            run,
            made_from,
        ),
        parts=head["parts"],
        stored_bytes=head["stored_bytes"],
    )
