"""What a server is: the package that its command line names, else its URL or command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from pml_gateway.config.commands.packages import package_of
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.trust.identity import digest, identity_of, is_identical
from tests.catalog.listings import JSON


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("npx -y @scope/server@1.2.3 /a", "@scope/server", "1.2.3"),
        ("npx @scope/server", "@scope/server", ""),
        ("npx --yes --package server@2 run-it", "server", "2"),
        ("npx --package=server@2 run-it", "server", "2"),
        ("uvx -p 3.12 server", "server", ""),
        ("/usr/bin/npx server@latest", "server", "latest"),
        ("cmd /c npx server@1", "server", "1"),
        ("bunx server", "server", ""),
        ("bun x server@1", "server", "1"),
        ("npm exec server@1 -- --port 1", "server", "1"),
        ("pnpm dlx server", "server", ""),
        ("uvx mcp-server-git==1.0 --repository /a", "mcp-server-git", "1.0"),
        ("uvx --from git-tools@2 run", "git-tools", "2"),
        ("uvx --with other tool@1", "tool", "1"),
        ("uv tool run tool", "tool", ""),
        ("pipx run tool==3", "tool", "3"),
        ("docker run -i --rm -e KEY=1 --name x mcp/github:1.2 stdio", "mcp/github", "1.2"),
        ("docker run -i localhost:5000/mcp", "localhost:5000/mcp", ""),
        ("podman run -it --env=K ghcr.io/x/y@sha256:abc", "ghcr.io/x/y", "sha256:abc"),
        ("node server.js", "", ""),
        ("npm start", "", ""),
        ("uv run server.py", "", ""),
        ("docker compose up", "", ""),
        ("npx", "", ""),
        ("env npx server", "", ""),
        ("deno run npm:server", "", ""),
    ],
)
def test_the_package_of_a_command_line(line: str, name: str, version: str) -> None:
    command, *args = line.split()
    package = package_of(command, args)
    assert (package.name, package.version) == (name, version)


def what(**entry: Any) -> str:
    return identity_of(UpstreamDefinition.model_validate(entry)).what


def test_what_a_server_is_stays_with_its_package_and_not_with_arguments_or_versions() -> None:
    assert what(command="npx", args=["a@1", "/x"]) == what(command="npx", args=["-y", "a@2", "/y"])
    assert what(command="npx", args=["a"]) == what(command="bunx", args=["a"])
    assert what(command="npx", args=["a"]) != what(command="npx", args=["b"])
    assert what(command="python", args=["s.py", "--x"]) == what(command="python", args=["s.py", "--y"])
    assert what(command="python", args=["s.py"]) != what(command="python", args=["t.py"])
    assert what(url="https://a.example/mcp?key=1") == what(url="https://A.example/mcp?key=2")
    assert what(url="https://a.example/mcp") != what(url="https://b.example/mcp")


def test_hashes_stay_what_they_are_in_the_files_of_earlier_versions() -> None:
    schema = {"b": [1, 1.0, True, None], "a": {}}
    assert digest({"name": "a", "description": "ü\ud800", "inputSchema": schema}) == "bfeff50bc94504e23c8779dac379de03"
    assert digest({}) == "d14a9ed7ce402a9300d29107d24fd6aa"
    deep: dict[str, Any] = {}
    for _ in range(260):
        deep = {"a": deep}
    assert digest(deep) == "dec5f6647d38c7f2da8a64ecb8db3a9a"
    for _ in range(2000):
        deep = {"a": deep}
    assert digest(deep) == ""


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("a", "b"), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
)
def test_what_json_tells_apart_is_not_identical(one: object, other: object) -> None:
    assert is_identical({"default": one}, {"default": one})
    assert not is_identical({"default": one}, {"default": other})


@given(one=JSON, other=JSON)
def test_what_is_identical_has_one_hash(one: object, other: object) -> None:
    for definition in ({"default": one}, {"default": other}):
        if is_identical({"default": one}, definition):
            assert digest({"default": one}) == digest(definition)
    copied = json.loads(json.dumps({"default": one}))
    assert is_identical({"default": one}, copied)
