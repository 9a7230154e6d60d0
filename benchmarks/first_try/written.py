"""One call as a model wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Arguments = dict[str, Any]
Must = Literal["be done", "be refused", "be either"]
"""At the first try: a call with one reading is done, one with several is refused; where it is a near miss of one that
was meant, both are right."""


@dataclass(frozen=True, slots=True)
class Written:
    """One call of a meta-tool as a model wrote it, and the call that it meant."""

    kind: str
    tool: str
    arguments: Arguments
    meant_tool: str
    meant: Arguments
    must: Must = "be done"
