"""Regular expressions of schemas in ECMA-262 with the `u` flag, as clients compile them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

MAX_PATTERN = 4096
"""Maximum number of characters of a pattern; longer ones are dropped."""

_TOKEN = re.compile(
    r"\(\?P?<(?P<name>[A-Za-z_]\w*)>|\(\?P=(?P<back>[A-Za-z_]\w*)\)|\((?P<flags>\?[a-z-]+:)|\\[pP]\{[^}]*\}|\\."
    r"|\{(?P<low>\d*)(?P<high>,\d*)?\}|.",
    re.DOTALL,
)
_OTHER_CLASS = re.compile(r"\[\^?\]|\[[:.=]")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_ANCHORS = {"\\A": "^", "\\Z": "$", "\\z": "$"}
_SETS = ("\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\p", "\\P")


@lru_cache(maxsize=4096)
def portable(pattern: str) -> str | None:
    """Return the pattern in a form that clients can compile, rewritten if an equivalent form exists; else None."""
    if len(pattern) > MAX_PATTERN:
        return None
    if _compiles(pattern):
        return pattern
    rewritten = _rewritten(pattern)
    return rewritten if rewritten is not None and _compiles(rewritten) else None


def _compiles(pattern: str) -> bool:
    from regress import Regex, RegressError

    try:
        Regex(pattern, "u")
    except (RegressError, ValueError):
        return False
    if "(?" not in pattern:
        return True
    # Too new for the runtimes of clients: flags of a group, and one name for several groups.
    tokens = [found for found, in_class in _tokens(pattern) if not in_class]
    names = [found["name"] for found in tokens if found["name"]]
    return len(set(names)) == len(names) and not any(found["flags"] for found in tokens)


def _tokens(pattern: str) -> Iterator[tuple[re.Match[str], bool]]:
    """Yield the parts of a pattern, each with True if it is inside a class."""
    in_class = False
    for found in _TOKEN.finditer(pattern):
        if not in_class and found[0] == "[":
            in_class = True
            yield found, False
            continue
        yield found, in_class
        in_class = in_class and found[0] != "]"


def _rewritten(pattern: str) -> str | None:
    """Return the pattern without notation of Python, PCRE or ECMA-262 without `u`; None for POSIX classes."""
    if _OTHER_CLASS.search(pattern):
        return None
    tokens = list(_tokens(pattern))
    written: list[str] = []
    groups: list[str] = []
    for index, (found, in_class) in enumerate(tokens):
        text = found[0]
        if in_class:
            following = tokens[index + 1][0][0] if index + 1 < len(tokens) else "]"
            between = following != "]" and written[-1] != "["
            if text == "-" and between and (written[-1].startswith(_SETS) or following.startswith(_SETS)):
                text = "\\-"
            elif text[0] == "\\" and not text[1].isalnum() and text[1] not in _SYNTAX and text[1] != "-":
                text = text[1]
        elif found["name"] or (text == "(" and tokens[index + 1 : index + 2] and tokens[index + 1][0][0] != "?"):
            # By number: named references differ between ECMA-262 and Python, in which clients are written too.
            groups.append(found["name"] or "")
            text = "("
        elif found["back"]:
            text = f"(?:\\{groups.index(found['back']) + 1})" if found["back"] in groups else "("
        elif text in _ANCHORS:
            text = _ANCHORS[text]
        elif found["high"] is not None or found["low"]:
            text = f"{{{found['low'] or '0'}{found['high'] or ''}}}"
        elif text in ("]", "{", "}", "{}"):
            text = "".join(f"\\{each}" for each in text)
        elif text[0] == "\\" and text[1:] and not text[1].isalnum() and text[1] not in _SYNTAX:
            text = text[1]
        written.append(text)
    return "".join(written)
