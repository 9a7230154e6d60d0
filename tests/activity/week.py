"""A recorded week by a seeded script: 600 calls over 120 tools of four servers, Zipf 1.5, half of them searched."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.scripted_server import ScriptedServer, tool

VERBS = {
    "create": "Create a new {noun} with the given fields.",
    "delete": "Remove a {noun} for good.",
    "list": "List every {noun} there is, newest first.",
    "update": "Change fields of an existing {noun}.",
    "export": "Export a {noun} as a file in CSV or PDF.",
    "share": "Share a {noun} with other people by link.",
}
NOUNS = {
    "shop": ("invoice", "customer", "order", "coupon", "product"),
    "office": ("calendar event", "document", "spreadsheet", "meeting room", "expense report"),
    "dev": ("pull request", "issue", "branch", "release", "pipeline"),
    "home": ("recipe", "playlist", "photo album", "light scene", "shopping list"),
}
CALLS = 600
EXPONENT = 1.5


@dataclass(frozen=True)
class WeekCall:
    """One call of the week, and the words of the search before it, if there was one."""

    name: str
    query: str | None


def upstreams(seed: int = 7) -> dict[str, ScriptedServer]:
    """The four servers; definitions are of very different size, as real ones are."""
    draw = random.Random(seed)
    made = {}
    for server, nouns in NOUNS.items():
        tools = []
        for noun in nouns:
            for verb, text in VERBS.items():
                count = min(int(draw.lognormvariate(1.2, 0.9)), 30)
                properties = {
                    f"field_{number}": {"type": "string", "description": f"The {noun}'s field number {number}."}
                    for number in range(count)
                }
                tools.append(tool(f"{verb}_{noun.replace(' ', '_')}", text.format(noun=noun), properties))
        made[server] = ScriptedServer(tools)
    return made


def week(seed: int = 7) -> list[WeekCall]:
    """The calls in their order."""
    draw = random.Random(seed)
    pairs = [(server, verb, noun) for server, nouns in NOUNS.items() for noun in nouns for verb in VERBS]
    draw.shuffle(pairs)
    weights = [1 / rank**EXPONENT for rank in range(1, len(pairs) + 1)]
    calls = []
    for server, verb, noun in draw.choices(pairs, weights, k=CALLS):
        query = f"{verb} a {noun}" if draw.random() < 0.5 else None
        calls.append(WeekCall(f"{server}__{verb}_{noun.replace(' ', '_')}", query))
    return calls
