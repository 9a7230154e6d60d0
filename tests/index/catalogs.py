"""Made-up catalogs whose tools have something in common, as those of published servers have."""

from __future__ import annotations

import random

from pml_gateway.index.text import ToolDocument
from tests.index.tools import tool

VERBS = ("create", "delete", "export", "find", "import", "list", "move", "read", "rename", "share")
NOUNS = ("account", "branch", "calendar", "contact", "document", "invoice", "message", "page", "report", "ticket")
TOPICS = ("billing", "chess", "forest", "harbour", "kitchen", "museum", "orbit", "quarry", "railway", "theatre")


def catalog(count: int, seed: int = 3) -> list[ToolDocument]:
    """Tools of a few servers; each has a word of its own."""
    draw = random.Random(seed)
    documents = []
    for number in range(count):
        verb, noun, topic = draw.choice(VERBS), draw.choice(NOUNS), draw.choice(TOPICS)
        described = f"{verb} one {noun} of the {topic} {draw.choice(NOUNS)} item{number}"
        documents.append(tool(f"{topic}{number % 9}__{verb}_{noun}_{number}", described, parameters=(noun,)))
    return documents
