"""The pages that `pml docs` shows: Markdown files in this folder, for people who have not read the source.

Files of `deploy/` are shown as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from pml_gateway.errors import UsageError
from pml_gateway.text import suggestion

READING_ORDER = (
    "quickstart",
    "clients",
    "machine",
    "servers",
    "logins",
    "connections",
    "protocol",
    "extensions",
    "modes",
    "migration",
    "meta-tools",
    "arguments",
    "agents",
    "workflows",
    "expressions",
    "results",
    "tasks",
    "search",
    "enrich",
    "skills",
    "fastmcp",
    "commands",
    "settings",
    "operations",
    "replicas",
    "console",
    "activity",
    "storage",
    "team",
    "security",
    "sets",
    "keys",
    "limits",
    "rules",
    "approvals",
    "trust",
    "troubleshooting",
    "figures",
)
"""Topics as a newcomer would read them; a page that is not named here comes after these, by its name."""

SUFFIX = ".md"


@dataclass(frozen=True, slots=True)
class Page:
    """One page: the name it is asked for by, its first heading, the sentence below that, and its Markdown."""

    topic: str
    title: str
    summary: str
    text: str


def pages() -> tuple[Page, ...]:
    """Return every page, in reading order."""
    found = [
        _page(file.name.removesuffix(SUFFIX), file.read_text(encoding="utf-8"))
        for file in files(__name__).iterdir()
        if file.name.endswith(SUFFIX)
    ]
    places = {topic: place for place, topic in enumerate(READING_ORDER)}
    return tuple(sorted(found, key=lambda page: (places.get(page.topic, len(places)), page.topic)))


def deployment_files() -> dict[str, str]:
    """Return the examples of a deployment by their names."""
    return {
        file.name: file.read_text(encoding="utf-8") for file in (files(__name__) / "deploy").iterdir() if file.is_file()
    }


def page_of(topic: str) -> Page:
    """Return the page on a topic.

    Raises:
        UsageError: there is none; the message names the nearest, its hint all of them.
    """
    known = {page.topic: page for page in pages()}
    if topic not in known:
        raise UsageError(f"no topic {topic!r}{suggestion(topic, known)}", hint=f"topics: {', '.join(known)}")
    return known[topic]


def topic_about(word: str) -> str | None:
    """Return the topic that has this word as its name or as a heading; None if no page is about it."""
    wanted, known = word.casefold(), pages()
    for page in known:
        if page.topic in (wanted, f"{wanted}s"):
            return page.topic
    heading = re.compile(rf"^#+ {re.escape(wanted)}s?$", re.MULTILINE)
    return next((page.topic for page in known if heading.search(page.text.casefold())), None)


@dataclass(frozen=True, slots=True)
class DocsHit:
    """A line of a page that has a word, with the heading above it."""

    topic: str
    heading: str
    line: str


def search(word: str, topic: str | None = None) -> list[DocsHit]:
    """Return the lines that have a word, in any case, of one page or of all.

    Raises:
        UsageError: there is no such topic.
    """
    found: list[DocsHit] = []
    for page in pages() if topic is None else [page_of(topic)]:
        heading = page.title
        for line in page.text.splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            if word.casefold() in line.casefold():
                found.append(DocsHit(page.topic, heading, line.strip()))
    return found


def _page(topic: str, text: str) -> Page:
    heading, summary, *_ = re.split(r"\n{2,}", text.strip(), maxsplit=2)
    return Page(topic, heading.removeprefix("# "), " ".join(summary.split()), text)
