"""Known tools are found again in other versions of their servers, and nowhere else."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.errors import GatewayError
from pml_gateway.example_queries.library import MAX_CHARACTERS
from pml_gateway.example_queries.shipped import KnownServers, ServerTools, ShippedDefinition, ShippedExamples, words_of
from pml_gateway.index.text import MAX_EXAMPLES
from tests.support.examples import examples

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "models"))
from build_examples import MIN_EXAMPLES, Written, described, package_name, read_texts, write  # noqa: E402

FILES = {
    "read_file": "Reads the complete contents of one file from the allowed folders, as text.",
    "write_file": "Creates a new file or overwrites an existing one with new contents; use with caution.",
    "move_file": "Moves or renames files and folders; fails if something is at the destination already.",
    "search": "Searches recursively for files whose names match a glob pattern, below a starting folder.",
}
HUB = {
    "search": "Searches repositories of the hub by words of their name, topic or readme.",
    "create_issue": "Opens a new issue in a repository of the hub, with labels and assignees.",
    "list_issues": "Lists the issues of a repository of the hub, filtered by state and label.",
    "fork": "Forks a repository of the hub to your own account or to an organization.",
}
CLOCK = {"now": "The current time in an IANA time zone, with its offset and whether it is summer time there."}
SERVERS = {"files": FILES, "hub": HUB, "clock": CLOCK}
PACKAGES = {"files": ["-y", "@acme/files@1.2"], "hub": ["acme-hub==3"]}


def definitions() -> dict[str, list[dict[str, Any]]]:
    numbers = iter(range(100))
    # Words tell as much as they are rare: among thousands of definitions, as in the file that is shipped.
    others = [{"n": -1, "server": "others", "name": "other", "description": "Does other things."}] * 4000
    return {
        "others": others,
        **{
            server: [
                {
                    "n": next(numbers),
                    "server": server,
                    "name": name,
                    "description": text,
                    "package": PACKAGES.get(server),
                }
                for name, text in tools.items()
            ]
            for server, tools in SERVERS.items()
        },
    }


def texts(each: dict[str, Any]) -> list[str]:
    name = each["name"].replace("_", " ")
    return [
        f"{each['server']} {template.format(name)}" for template in ("{}", "wants {} at once", "and in the end, {} it")
    ]


@pytest.fixture(scope="module")
def shipped_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "examples.zip"
    servers = definitions()
    write(path, servers, {each["n"]: texts(each) for server in SERVERS for each in servers[server]})
    return path


@pytest.fixture(scope="module")
def shipped(shipped_file: Path) -> ShippedExamples:
    return ShippedExamples(shipped_file)


def listing(tools: dict[str, str], package: str = "") -> ServerTools:
    return ServerTools(tuple(ShippedDefinition(name, text) for name, text in tools.items()), package)


def found(shipped: ShippedExamples, tools: dict[str, str], package: str = "") -> dict[str, str]:
    """The server whose examples each tool gets."""
    [examples] = shipped.examples_of([listing(tools, package)])
    return {name: each[0].split()[0] for name, each in zip(tools, examples, strict=True) if each}


def test_a_server_is_known_by_what_it_lists_whatever_it_is_called(shipped: ShippedExamples) -> None:
    for server, tools in SERVERS.items():
        assert found(shipped, tools) == dict.fromkeys(tools, server)


def test_tools_are_known_after_small_changes_and_additions(shipped: ShippedExamples) -> None:
    newer = {
        **FILES,
        "read_file": FILES["read_file"] + " Binary files come as base64.",
        "search": "Searches recursively for files and folders whose names match a glob pattern, below a folder.",
        "delete_file": "Deletes a file for ever.",
    }
    assert found(shipped, newer) == dict.fromkeys(FILES, "files")


def test_a_package_is_evidence_where_descriptions_were_reworded(shipped: ShippedExamples) -> None:
    reworded = {"now": CLOCK["now"], "search": "Searches recursively for files by a glob pattern, below a folder."}
    assert found(shipped, reworded) == {"now": "clock"}
    assert found(shipped, reworded, "@acme/files") == {"now": "clock", "search": "files"}


def test_the_same_name_at_an_unlike_server_is_another_tool(shipped: ShippedExamples) -> None:
    assert not found(shipped, {"search": "Searches the web for pages.", "fork": "Makes a fork for a table setting."})
    assert not found(shipped, {"search": ""})
    assert found(shipped, {**HUB, "search": FILES["search"].replace("files", "pages")}) == {
        name: "hub" for name in HUB if name != "search"
    }


def test_a_tool_with_anothers_description_is_not_known(shipped: ShippedExamples) -> None:
    assert found(shipped, {**FILES, "search": "Counts the stars of the milky way."}) == {
        name: "files" for name in FILES if name != "search"
    }


@cache
def known_servers() -> KnownServers:
    servers = definitions()
    return KnownServers(described(servers, {server: _written(servers[server]) for server in SERVERS}))


@settings(max_examples=examples(60))
@given(
    tools=st.dictionaries(
        st.sampled_from([*FILES, *HUB, *CLOCK]),
        st.text(max_size=200)
        | st.lists(
            st.sampled_from(
                sorted({word for tools in SERVERS.values() for text in tools.values() for word in text.split()})
            ),
            max_size=20,
        ).map(" ".join),
        max_size=8,
    )
)
def test_random_words_under_known_names_are_no_known_tools(tools: dict[str, str]) -> None:
    known = known_servers()
    for at, tool in known.recognised(listing(tools)).items():
        name = list(tools)[at]
        said = set(tools[name].lower().split())
        wanted = set(SERVERS[known.servers[tool.server].server][name].lower().split())
        assert len(said & wanted) >= len(wanted) / 2


def _written(tools: list[dict[str, Any]]) -> list[Written]:
    return [Written(each["name"], words_of(each["description"]), ()) for each in tools]


def test_a_file_that_cannot_be_read_is_told_and_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "examples.zip"
    assert found(ShippedExamples(broken), FILES) == {}
    broken.write_bytes(b"PK no zip")
    assert found(ShippedExamples(broken), FILES) == {}
    with zipfile.ZipFile(broken, "w") as file:
        file.writestr("index.json", "[]")
    assert found(ShippedExamples(broken), FILES) == {}
    assert caplog.text.count("install the package anew") == 3


def test_texts_that_do_not_tell_a_tool_apart_are_left_out(tmp_path: Path) -> None:
    servers = definitions()
    written = {each["n"]: texts(each) for each in servers["hub"]}
    first, second = servers["hub"][0]["n"], servers["hub"][1]["n"]
    written[first] += ["open the door", "call create_issue now", "hub wants search at  once", "x" * 400]
    written[second] += ["Open the door"]
    path = tmp_path / "examples.zip"
    write(path, servers, written)
    [examples] = ShippedExamples(path).examples_of([listing(HUB)])
    assert [len(each) for each in examples] == [3, 3, 3, 3]
    again = tmp_path / "again.zip"
    write(again, servers, written)
    assert path.read_bytes() == again.read_bytes()


def test_blocks_and_packages_are_read_as_they_are_written() -> None:
    assert read_texts("[3]\none\n two \n\n[14]\nthree\n") == {3: ["one", "two"], 14: ["three"]}
    assert [
        package_name(each) for each in (["-y", "@a/b@2", "x"], ["b==1"], ["--from", "c", "d"], ["npx", "-y", "e"], [])
    ] == [
        "@a/b",
        "b",
        "c",
        "e",
        "",
    ]


def test_the_shipped_file_is_sound_and_in_the_wheel() -> None:
    path = REPOSITORY / "models" / "example_queries" / "example_queries.zip"
    mapped = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert mapped["force-include"]["models/example_queries/example_queries.zip"] == (
        "pml_gateway/_shipped/models/example_queries/example_queries.zip"
    )
    assert path.stat().st_size < 12_000_000
    shipped = ShippedExamples(path)
    servers = shipped.servers()
    assert len(servers) >= 150
    assert sum(len(server.tools) for server in servers) >= 3_000
    with zipfile.ZipFile(path) as file:
        for at, server in enumerate(servers):
            examples = json.loads(file.read(f"{at}.json"))
            assert len(examples) == len(server.tools)
            for each in examples:
                assert MIN_EXAMPLES <= len(each) <= MAX_EXAMPLES
                assert all(len(text) <= MAX_CHARACTERS and text.isprintable() for text in each)


@pytest.mark.parametrize("at", ["method", "version", "encrypted", "nested", "shape"])
def test_a_damaged_installation_has_no_examples(
    tmp_path: Path, shipped_file: Path, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    content = bytearray(shipped_file.read_bytes())
    [*_, index] = (
        found.start()
        for found in re.finditer(b"PK\x01\x02", content)
        if b"index.json" in content[found.start() : found.start() + 60]
    )
    path = tmp_path / "damaged.zip"
    match at:
        case "method":
            content[index + 10] = 99
        case "version":
            content[index + 6] = 200
        case "encrypted":
            content[index + 8] |= 1
        case _:
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("index.json", "[" * 100_000 if at == "nested" else '{"servers": [5]}')
            content = bytearray(path.read_bytes())
    path.write_bytes(content)
    assert ShippedExamples(path).examples_of([listing(FILES)]) == [((),) * len(FILES)]
    assert "install the package anew" in caplog.text
    with pytest.raises(GatewayError, match="cannot be read"):
        ShippedExamples(path).servers()
