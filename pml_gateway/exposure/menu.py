"""The menu of a server: a line for each tool, and groups of the tools of a large server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.exposure.namespaces import MAX_PARAMETERS, MAX_PURPOSE, parameters, purpose
from pml_gateway.index.text import split_words
from pml_gateway.index.verbs import VERBS
from pml_gateway.text import escaped

GROUPED = 40
"""Maximum number of tools of a server that are listed without groups, and of one group: 40 lines are some 1,600
tokens, as much as a model reads at once."""

MIN_GROUP = 3
MAX_GROUPS = 40
MAX_NAME, MAX_WORDS = 200, 12
"""Maximum number of characters and of words of a name that are looked at."""

OTHERS = "others"
"""The group of the tools that share no word with enough others."""

_PLURAL = re.compile(r"(?<=\w\w)(?:(?P<y>ies)|(?<=ss|sh|ch)es|(?<=x)es|(?<=\w\w\w)(?<![su])s)$")


def menu_line(tool: CatalogTool, call: str, outcome: str) -> str:
    """Return the line of a tool: how to call it, what comes of it, and after `#` its purpose if its name does not say.

    The server's own words come last, so that they cannot pass for the gateway's.
    """
    known = f"{tool.name} {' '.join(parameter.name for parameter in parameters(tool)[:MAX_PARAMETERS])}"
    said = purpose(tool.description or tool.title, MAX_PURPOSE, known=known)
    unavailable = " [unavailable]" if tool.stale else ""
    return escaped(f"{call}{outcome}{unavailable}{f' # {said}' if said else ''}")


def by_use(tools: Iterable[CatalogTool], used: Mapping[CatalogTool, int]) -> list[CatalogTool]:
    """Return tools in the order of their places in `used`, the others by name."""
    return sorted(tools, key=lambda tool: (used.get(tool, len(used)), tool.qualified_name))


def grouped(tools: Sequence[CatalogTool], used: Mapping[CatalogTool, int]) -> dict[str, list[CatalogTool]]:
    """Return the tools of one server by a word that their names share: the resource, or a prefix.

    Each tool is in one group. Groups and their tools are in the order of use, then of their names; a small server, or
    one whose tools share no words, is one group without a name. Takes time in proportion to the number of tools.
    """
    named = _by_shared_word(tools) if len(tools) > GROUPED else {}
    if not named:
        return {"": by_use(tools, used)}
    inside = {name: by_use(members, used) for name, members in named.items()}
    order = sorted(inside, key=lambda name: (used.get(inside[name][0], len(used)), name == OTHERS, name))
    return {name: inside[name] for name in order}


def _by_shared_word(tools: Sequence[CatalogTool]) -> dict[str, list[CatalogTool]]:
    """Group by the words that most of the ungrouped tools share, one after the other."""
    words = {tool: _words(tool.name) for tool in tools}
    whole = Counter(word for each in words.values() for word in each)
    # A word of most names, such as that of the system, tells nothing.
    telling = {tool: {word for word in each if 2 * whole[word] <= len(tools)} for tool, each in words.items()}
    left = Counter(word for each in telling.values() for word in each)
    groups: dict[str, list[CatalogTool]] = {}
    while left and len(groups) < MAX_GROUPS:
        word = min(left, key=lambda each: (left[each] > GROUPED, -left[each], each))
        if not MIN_GROUP <= left[word] <= GROUPED:
            break
        groups[word] = [tool for tool, each in telling.items() if word in each]
        for tool in groups[word]:
            left.subtract(telling.pop(tool))
    if groups and telling:
        groups[OTHERS] = [*telling]
    return groups


def _words(name: str) -> set[str]:
    """Return the words of a name in the singular, without its first verb, which tells the action."""
    words = split_words(name[:MAX_NAME]).casefold().split()[:MAX_WORDS]
    if (verb := next((word for word in words if word in VERBS), None)) is not None:
        words.remove(verb)
    return {_PLURAL.sub(lambda found: "y" if found["y"] else "", word) for word in words}
