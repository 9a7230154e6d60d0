"""Plain words: few docstrings open with a relative clause, some words are banned, and no class name is used twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.test_architecture import PACKAGE, modules, nodes

RELATIVE = re.compile(r"(?:What|Whether|Whose|Where|How|Who|Which)\b")
MAX_RELATIVE_SHARE = 0.01

BANNED = {
    r"\bof now\b": 'say "now" or "current"',
    r"\bmend(?:s|ed|ing)?\b": 'say "fix"',
    r"\bnobody's\b": "name who is meant: no client, no other process",
}
"""Words that stumped new readers, each with what to write instead."""


def docstrings(tree: ast.Module) -> Iterator[str]:
    """The strings that stand under modules, classes, functions, constants and fields."""
    for node in nodes(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    found = [text.strip() for tree in modules().values() for text in docstrings(tree)]
    relative = [text for text in found if RELATIVE.match(text)]
    assert len(relative) <= MAX_RELATIVE_SHARE * len(found), relative[:10]


def test_no_public_class_has_the_name_of_another() -> None:
    counts = Counter(
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("pattern", BANNED, ids=["of now", "mend", "nobody's"])
def test_words_that_new_readers_stumble_over_stand_nowhere(pattern: str) -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *PACKAGE.parent.glob("*.md")]
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{number}: {BANNED[pattern]}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []
