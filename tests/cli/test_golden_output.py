"""What commands print, word for word, at 80 columns and without colour; `PML_GOLDEN=write` writes it anew."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import WIDTH, demo_home, pml
from tests.support.golden import is_as_before

OUTPUTS = {
    "tools": ["tools"],
    "tools-meta-only": ["tools", "--mode", "meta_only"],
    "tools-explain": ["tools", "--client", "bot", "--explain"],
    "search-servers": ["search", "*"],
    "search-menu": ["search", "*", "--server", "calc"],
    "search-unknown": ["search", "create a page in notion"],
    "search-name": ["search", "calc__date_difference", "--limit", "1"],
    "search-signature": ["search", "calc__date_difference", "--limit", "1", "--detail", "signature"],
    "schema-markdown": ["schema", "calc__date_difference", "files__search_text"],
    "schema-typescript": ["schema", "calc__date_difference", "--format", "typescript"],
    "call": ["call", "calc__evaluate_expression", "--expression", "6 * 7"],
    "call-help": ["call", "files__search_text", "--help"],
    "config-show": ["config", "show", "--origin"],
    "config-presets": ["config", "presets"],
    "config-reference": ["config", "reference", "search"],
    "docs": ["docs"],
    "example-queries-list": ["example-queries", "list", "--server", "calc"],
}

UNWRAPPED = {"schema-markdown", "schema-typescript", "call-help", "config-show"}
"""They print a server's or the user's own text, which is copied as it is."""

FAILURES = {
    "call-unknown-tool": (["call", "calc__evaluate_expresion"], 1),
    "call-unknown-option": (["call", "calc__evaluate_expression", "--expresion", "1"], 2),
    "call-missing-argument": (["call", "calc__evaluate_expression"], 1),
    "schema-unknown-tool": (["schema", "calc__nothing"], 1),
    "tools-unknown-mode": (["tools", "--mode", "hybird"], 2),
    "example-queries-unknown-tool": (["example-queries", "show", "calc__nothing"], 1),
    "docs-unknown-topic": (["docs", "mode"], 2),
}

JSON = {
    "tools": ["tools", "--mode", "hybrid"],
    "tools --explain": ["tools", "--client", "bot", "--explain"],
    "search": ["search", "calc__date_difference", "--explain"],
    "search '*'": ["search", "*"],
    "schema": ["schema", "calc__date_difference"],
    "call": ["call", "calc__evaluate_expression", "--expression", "6 * 7"],
    "call --help": ["call", "calc__date_difference", "--help"],
    "config reference": ["config", "reference", "search"],
    "config presets": ["config", "presets"],
    "config validate": ["config", "validate"],
    "config --preset": ["config", "--preset", "full_proxy", "--dry-run"],
    "prompts": ["prompts"],
    "example-queries list": ["example-queries", "list"],
    "example-queries show": ["example-queries", "show", "calc__date_difference"],
    "workflow list": ["workflow", "list"],
    "workflow validate": ["workflow", "validate"],
    "trust --list": ["trust", "--list"],
    "clients": ["clients"],
    "docs": ["docs"],
    "docs TOPIC": ["docs", "modes"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's servers, and a client that may not see all of their tools."""
    gateway = {"hybrid": {"whitelisted_tools": ["calc:current_time"]}, "blacklisted_tools": ["*:delete_*"]}
    bot = {"key": "${env:BOT_KEY}", "allow": ["calc:*", "notes:*"], "deny": ["notes:a*"], "mode": "hybrid"}
    folder = tmp_path_factory.mktemp("golden")
    with demo_home(folder, {"gateway": gateway, "clients": {"bot": bot}}) as home:
        yield home


def normalised(text: str, home: Path) -> str:
    """The text without what differs from one machine to the next."""
    text = text.replace(str(home.parent), "<folder>").replace(sys.executable, "<python>")
    text = text.replace(str(Path(__file__).parents[2]), "<repository>")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_is_as_before(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "config-show":
        # It would be told as set by the environment.
        monkeypatch.delenv("PML_LOCAL__ATTACH")
    shown = pml(*OUTPUTS[name])
    assert not re.search(r"\x1b\[", shown.output)
    if name not in UNWRAPPED:
        assert max(map(len, shown.stdout.splitlines())) <= WIDTH
    is_as_before(f"{name}.txt", normalised(shown.stdout, home))


@pytest.mark.parametrize("name", FAILURES)
def test_the_error_is_as_before(name: str, home: Path) -> None:
    words, code = FAILURES[name]
    failed = pml(*words, code=code)
    assert failed.stdout == ""
    is_as_before(f"{name}.txt", normalised(failed.stderr, home))


@pytest.mark.slow
def test_the_json_of_every_answer_has_the_shape_of_before(home: Path) -> None:
    shapes = {name: shape(json.loads(pml(*words, "--json").stdout)) for name, words in JSON.items()}
    is_as_before("shapes.json", json.dumps(shapes, indent=1, sort_keys=True) + "\n")


def shape(value: Any) -> Any:
    """The keys and the types of an answer; of a list, those of all its items together."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        shapes = {json.dumps(shape(item), sort_keys=True) for item in value}
        return [json.loads(each) for each in sorted(shapes)]
    return type(value).__name__
