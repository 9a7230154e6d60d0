"""The instructions for a client at its first request: usage, systems behind the gateway, and servers' instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.types import Effect

OWN = "A gateway to many MCP servers."
HOW_TO = "Tools that are not listed are found with search_tools, whose answers say how to call them."

MAX_NAMED_SYSTEMS = 12
MAX_SYSTEM_NAME = 40

MAX_READ = 4000
"""Maximum characters of one server's text that are read; at the default budget, no more than half would be kept."""

_SENTENCE = re.compile(r"\s*\S.*?(?:[.!?:](?=\s)|(?=\n)|\Z)")
_WORD = re.compile(r"\s*\S+")
CUT = " […]"
"""Marks a truncated text."""


@dataclass(frozen=True, slots=True)
class Systems:
    """The servers that a client may know of: those with tools, and those that have not listed any yet."""

    known: Sequence[str] = ()
    starting: Sequence[str] = ()
    effect: Effect = Effect.UNKNOWN
    """The strongest effect of the tools that the client may call."""
    has_skills: bool = False
    """True if the client sees any skill."""

    def __bool__(self) -> bool:
        return bool(self.known or self.starting)

    def __str__(self) -> str:
        """Return the servers by name, at most twelve of each kind."""
        if not self:
            return "No system is available now."
        known = f"Systems: {_named(self.known)}." if self.known else ""
        return " ".join(filter(None, (known, self.wait)))

    @property
    def wait(self) -> str:
        """Return the advice about servers that are starting; empty if there are none."""
        return f"Still starting, ask again in a few seconds: {_named(self.starting)}." if self.starting else ""


NO_SYSTEMS = Systems()


def _named(servers: Sequence[str]) -> str:
    named = ", ".join(server[:MAX_SYSTEM_NAME] for server in servers[:MAX_NAMED_SYSTEMS])
    more = len(servers) - MAX_NAMED_SYSTEMS
    return f"{named}{f' and {more} more' if more > 0 else ''}"


def instructions(systems: Systems, said: Mapping[str, str], budget: int, *, can_search: bool) -> str:
    """Return the text for one client, of at most `budget` tokens.

    The most useful parts come first: how to find tools, the systems by name, then each server's own instructions. Text
    that another server's contains is left out. The servers share the rest of the budget evenly; what short texts leave
    goes to the others, and long texts are cut after a sentence. Blocking: call it in a thread.

    Args:
        systems: the servers that the client may know of.
        said: the instructions of the servers of which it sees anything.
        budget: maximum tokens; 0 gives no text.
        can_search: True if `search_tools` is on the client's list.
    """
    own = [f"{OWN} {HOW_TO}" if can_search else OWN, *([str(systems)] if systems else [])]
    parts = [(f"## {', '.join(names)}\n", text) for names, text in _without_repeats(said)]
    whole = "\n\n".join([*own, *(head + text for head, text in parts)])
    # The vocabulary takes a moment to load, which the first answer need not wait for if everything is short.
    if len(whole.encode()) <= budget:
        return whole
    kept: list[str] = []
    left = budget
    for part in own:
        if (left := left - _cost(part)) < 0:
            return "\n\n".join(kept)
        kept.append(part)
    chosen: dict[int, str] = {}
    for number, (index, (head, text)) in enumerate(sorted(enumerate(parts), key=lambda each: len(each[1][1]))):
        share = left // (len(parts) - number)
        if part := _within(head, text, share):
            chosen[index] = part
            left -= _cost(part)
    return "\n\n".join([*kept, *(chosen[index] for index in sorted(chosen))])


def _without_repeats(said: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return each text once, with all servers whose text it contains, in the order of the servers."""
    known: list[tuple[list[str], str, str]] = []
    by_length = sorted(said.items(), key=lambda each: -len(each[1]))
    for server, text in by_length:
        plain = " ".join(text[:MAX_READ].split())
        if not plain:
            continue
        for names, _, whole in known:
            if plain in whole:
                names.append(server)
                break
        else:
            known.append(([server], text[:MAX_READ].strip() + (CUT if len(text) > MAX_READ else ""), plain))
    order = {server: place for place, server in enumerate(said)}
    for names, _, _ in known:
        names.sort(key=order.__getitem__)
    return [(names, text) for names, text, _ in sorted(known, key=lambda each: order[each[0][0]])]


def _within(head: str, text: str, share: int) -> str:
    """Return as many sentences of a text as fit its share, or words if no sentence fits, or an empty string."""
    if _cost(head + text) <= share:
        return head + text
    left = share - _cost(head + CUT)
    kept = _first(_SENTENCE, text, left) or _first(_WORD, text, left)
    return f"{head}{kept}{CUT}" if kept else ""


def _first(pieces: re.Pattern[str], text: str, budget: int) -> str:
    """Return as many pieces from the beginning of a text as fit the budget."""
    end = 0
    for match in pieces.finditer(text):
        budget -= count_tokens(match[0])
        if budget < 0:
            break
        end = match.end()
    return text[:end]


def _cost(part: str) -> int:
    """Return the tokens of a part and of the separator after it."""
    return count_tokens(part) + 1
