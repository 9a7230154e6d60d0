"""Lists by intent over the tools of published servers: each step is served, shortly, and nothing is removed unasked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.selection import Cut, object_words, wanted_steps
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import Ranking
from tests.index.test_desk import DATA, documents
from tests.index.tools import read_rows

THRESHOLD = 0.7


@pytest.fixture(scope="module")
def published(shipped: Embedder) -> ToolIndex:
    """180 tools of fifteen servers, and some of the kinds that none of those has."""
    rows = read_rows(DATA / "servers" / "tools.jsonl")
    servers = sorted({row["server"] for row in rows})
    found = [each for name in servers for each in documents(name, [row for row in rows if row["server"] == name])]
    more = {
        "disk": ("copy_file", "Copies a file or folder to another place."),
        "disk2": ("delete_file", "Deletes a file from disk."),
        "notes": ("delete_note", "Deletes a note."),
        "codehost": ("delete_branch", "Deletes a branch of a repository."),
        "codehost2": ("archive_repository", "Archives a repository, so that nobody can write to it."),
        "pack": ("extract_archive", "Extracts the files of a zip archive."),
    }
    made = [ToolDocument(f"{server}::{name}", server, name, "", said, ()) for server, (name, said) in more.items()]
    destructive = {"delete_file", "delete_note", "delete_branch", "archive_repository", "write_file", "kubectl_delete"}
    return ToolIndex.build(
        [replace(each, is_destructive=each.name in destructive) for each in (*found, *made)], shipped
    )


def listed(index: ToolIndex, intent: str, threshold: float = THRESHOLD) -> list[str]:
    return [each.key.replace("__", "::") for each in index.select(intent, threshold=threshold) if each.cut is None]


@pytest.mark.parametrize(
    ("intent", "needed"),
    [
        ("how long until christmas", {"time::get_current_time"}),
        ("how many weeks are left till the summer holidays?", {"time::get_current_time"}),
        ("what do you know about Alice", {"memory::search_nodes"}),
        ("remember my favourite colour is blue", {"memory::add_observations"}),
        ("back up my documents folder", {"disk::copy_file"}),
        ("let the team know that the release is done", {"slack::slack_post_message"}),
        ("tell #general that the build is green", {"slack::slack_post_message"}),
        ("throw away my uncommitted changes", {"git::git_reset"}),
        ("make a backup of config.yaml", {"disk::copy_file"}),
        ("merge my branch and delete it", {"github::merge_pull_request", "codehost::delete_branch"}),
        ("don't forget to delete the branch", {"codehost::delete_branch"}),
        ("unzip the download", {"pack::extract_archive"}),
        ("get rid of the old note", {"notes::delete_note"}),
        ("erase a person from the knowledge graph", {"memory::delete_entities"}),
        ("forget that Bob lives in Paris", {"memory::delete_observations"}),
        ("remove item 12 from the knowledge graph", {"memory::delete_entities"}),
    ],
)
def test_what_an_intent_needs_is_listed(published: ToolIndex, intent: str, needed: set[str]) -> None:
    assert needed <= set(listed(published, intent))


@pytest.mark.parametrize(
    ("intent", "absent"),
    [
        ("merge my branch and delete it", {"disk2::delete_file", "notes::delete_note", "memory::delete_entities"}),
        ("do not delete the file, only show it", {"disk2::delete_file"}),
        ("show the file without deleting it", {"disk2::delete_file"}),
        ("lösch die Datei nicht", {"disk2::delete_file"}),
        ("which branches are there", {"codehost::delete_branch"}),
        ("delete the log files", {"kubernetes::kubectl_delete", "codehost::delete_branch", "notes::delete_note"}),
        ("list the pods and delete the stale ones", {"disk2::delete_file", "notes::delete_note"}),
        ("who can write to the repository", {"codehost2::archive_repository", "filesystem::write_file"}),
        ("back up the repository", {"codehost2::archive_repository"}),
        ("unzip the download", {"everything::gzip-file-as-resource"}),
    ],
)
def test_what_would_do_something_else_is_not(published: ToolIndex, intent: str, absent: set[str]) -> None:
    assert not absent & set(listed(published, intent))


def test_the_reason_is_told(published: ToolIndex) -> None:
    cut = {each.key: each.cut for each in published.select("merge my branch and delete it", threshold=0.3)}
    assert cut["notes::delete_note"] is Cut.EFFECT
    assert cut["codehost::delete_branch"] is None
    short = {each.key: each.cut for each in published.select("zip a folder", threshold=THRESHOLD)}
    assert short["filesystem__list_directory"] in (Cut.GAP, Cut.THRESHOLD)


@pytest.mark.parametrize("intent", ["zip a folder", "scale the deployment to three replicas", "take a screenshot"])
def test_a_list_ends_where_its_first_tool_stands_out(published: ToolIndex, intent: str) -> None:
    assert 1 <= len(listed(published, intent)) <= 3


def test_a_lower_threshold_lists_more(published: ToolIndex) -> None:
    short, long = (listed(published, "summarise the open pull requests", each) for each in (0.7, 0.5))
    assert short
    assert set(short) < set(long)


def test_a_tool_that_the_intent_names_is_listed_whatever_it_does(published: ToolIndex) -> None:
    assert listed(published, "notes:delete_note")[0] == "notes::delete_note"


def test_words_alone_select_as_well(published: ToolIndex) -> None:
    found = published.select("delete a branch", threshold=THRESHOLD, ranking=Ranking.LEXICAL)
    fits = [each.key for each in found if each.cut is None]
    assert "codehost::delete_branch" in fits
    assert "notes::delete_note" not in fits


@pytest.mark.parametrize(
    ("intent", "steps"),
    [
        ("merge my branch and delete it", ("merge my branch", "delete branch")),
        ("create a ticket for the bug and assign it to Dana", ("create a ticket for the bug", "assign ticket to Dana")),
        ("don't delete anything, just list the files", ("just list the files",)),
        ("show the name of my branch and delete it", ("show the name of my branch", "delete name branch")),
        ("rename it instead of deleting it", ("rename it",)),
        ("do not delete anything", ()),
        ("ne supprime rien", ()),
        ("find the file", ("find the file",)),
        ("find non-empty folders", ("find non-empty folders",)),
        ("list non compliant hosts", ("list non compliant hosts",)),
        ("find the SIN of an employee", ("find the SIN of an employee",)),
        ("look up NE region stock", ("look up NE region stock",)),
        ("read the poem sans serif", ("read the poem sans serif",)),
        ("ne supprime pas le fichier", ()),
        ("non cancellare il file in archivio", ()),
        ("borra la lista sin tocar los archivos", ()),
    ],
)
def test_steps_are_complete_and_wanted(intent: str, steps: tuple[str, ...]) -> None:
    assert wanted_steps(intent) == steps


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("drop the users table", ["users", "table"]),
        ("remove the label from the issue", ["label"]),
        ("delete it", []),
        ("forget everything about Carol", []),
        ("get rid of the old branch", ["old", "branch"]),
        ("forget that Bob lives in Paris", []),
        ("remove item ABC123 from my wishlist", ["wishlist"]),
        ("get the details of my payment", ["details"]),
    ],
)
def test_the_object_of_a_step_is_what_its_verb_acts_on(step: str, words: list[str]) -> None:
    assert object_words(step) == words


@pytest.fixture(scope="module")
def small() -> Iterator[ToolIndex]:
    names = ("read_file", "delete_file", "send_email", "archive_page")
    yield ToolIndex([ToolDocument(name, "up", name, "", name.replace("_", " "), ()) for name in names])


@given(intent=st.text(max_size=200))
def test_any_text_selects_each_tool_at_most_once(small: ToolIndex, intent: str) -> None:
    keys = [each.key for each in small.select(intent, threshold=0.5)]
    assert len(keys) == len(set(keys))
