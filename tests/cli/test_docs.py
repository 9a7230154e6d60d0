"""`pml docs` lists the pages and shows one, as a person or a program reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pml_gateway.cli.completion import topic_names
from pml_gateway.docs import page_of, pages
from tests.support.command_line import WIDTH, pml


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_without_a_topic_it_lists_the_pages_in_reading_order() -> None:
    shown = pml("docs").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:] if not line.startswith(" ")] == [
        page.topic for page in pages()
    ]
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_a_page_goes_into_a_pipe_as_the_markdown_it_is() -> None:
    assert pml("docs", "modes").stdout == page_of("modes").text


@pytest.mark.parametrize("topic", [page.topic for page in pages()])
def test_a_terminal_shows_a_page_within_its_width_and_cuts_nothing(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    shown = pml("docs", topic).stdout
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert shown.count("…") == page_of(topic).text.count("…")
    assert "<!--" not in shown
    assert ".md)" not in shown


def test_on_a_terminal_a_link_to_a_page_is_the_command_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "Workflows (pml docs workflows)" in pml("docs", "meta-tools").stdout


def test_a_wide_table_becomes_a_list_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    lines = [line.rstrip() for line in pml("docs", "settings").stdout.splitlines()]
    at = lines.index("search.limit")
    assert lines[at + 1 : at + 3] == ["    takes: whole number ≥ 1 and ≤ 50", "    default: 5"]


def test_json_gives_the_list_or_the_page() -> None:
    topics = json.loads(pml("docs", "--json").stdout)["topics"]
    assert topics[0] == {
        "topic": "quickstart",
        "title": "Getting started",
        "summary": page_of("quickstart").summary,
    }
    page = page_of("modes")
    assert json.loads(pml("docs", "modes", "--json").stdout) == {
        "topic": "modes",
        "title": page.title,
        "text": page.text,
    }


def test_an_unknown_topic_names_the_nearest() -> None:
    failed = pml("docs", "migrations", code=2)
    assert failed.stdout == ""
    assert "no topic 'migrations'; did you mean migration?" in failed.stderr
    assert "topics: quickstart, " in failed.stderr
    error = json.loads(pml("docs", "migrations", "--json", code=2).stdout)["error"]
    assert error["code"] == "INVALID_INPUT"


def test_the_shell_completes_topics() -> None:
    assert topic_names("m") == ["machine", "modes", "migration", "meta-tools"]


def test_a_word_is_found_with_the_heading_above_it() -> None:
    hits = json.loads(pml("docs", "--search", "HELD_BACK", "--json").stdout)["hits"]
    assert {"topic": "trust", "heading": "What clients see"} in [
        {key: hit[key] for key in ("topic", "heading")} for hit in hits
    ]
    assert all("held_back" in hit["line"].casefold() for hit in hits)
    shown = pml("docs", "trust", "--search", "quarantined").stdout
    assert {line.split()[0] for line in shown.splitlines()[1:] if not line.startswith(" ")} == {"trust"}
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "no page has 'xyzzy'" in pml("docs", "--search", "xyzzy", code=1).stderr
    assert "no topic 'modez'; did you mean modes?" in pml("docs", "modez", "--search", "x", code=2).stderr


def test_a_terminal_gets_a_page_through_its_pager(tmp_path: Path) -> None:
    pager, seen = tmp_path / "pager", tmp_path / "seen"
    pager.write_text(f'#!/bin/sh\ncat > {seen}\nprintf %s "$LESS" >> {seen}\n', encoding="ascii")
    pager.chmod(0o755)
    master, slave = os.openpty()
    environ = {**os.environ, "PAGER": str(pager), "TERM": "xterm"}
    environ.pop("LESS", None)
    command = [sys.executable, "-m", "pml_gateway", "docs", "modes"]
    with os.fdopen(master, "rb"), os.fdopen(slave, "wb") as terminal:
        subprocess.run(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ, timeout=60, check=True)
    text = seen.read_text(encoding="utf-8")
    assert "full_proxy" in text
    assert text.endswith("FRX")
