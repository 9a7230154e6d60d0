"""Which command lines fetch a package before they start it, and which of them fetch the same."""

from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.config.commands.packages import PackageRun, kept_state, package_run


def run_of(line: str) -> PackageRun | None:
    command, *args = shlex.split(line)
    return package_run(command, args)


@pytest.mark.parametrize(
    ("line", "runner", "packages"),
    [
        ("npx -y @scope/server /tmp", "npx", ["@scope/server"]),
        ("npx --yes a@1.2.3 -p x", "npx", ["a@1.2.3"]),
        ("npx -y -p a -p b@2 run", "npx", ["a", "b@2"]),
        ("npx --package=a run --package=b", "npx", ["a"]),
        ("/opt/node/bin/npx a", "npx", ["a"]),
        ("npm exec -y -- a --port 1", "npm exec", ["a"]),
        ("npm x a", "npm exec", ["a"]),
        ("pnpm dlx a", "pnpm dlx", ["a"]),
        ("yarn dlx a", "yarn dlx", ["a"]),
        ("bunx a", "bunx", ["a"]),
        ("bun x a", "bun x", ["a"]),
        ("uvx mcp-server-git --repository .", "uvx", ["mcp-server-git"]),
        ("uvx --python 3.12 --from git+https://x/y tool", "uvx", ["git+https://x/y"]),
        ("uvx -p 3.12 a", "uvx", ["a"]),
        ("uvx --with extra a", "uvx", ["a", "extra"]),
        ("uv tool run a@latest", "uv tool run", ["a@latest"]),
        ("pipx run --spec a==1 tool", "pipx run", ["a==1"]),
        ("docker run -i --rm -e TOKEN mcp/github:1 stdio", "docker run", ["mcp/github:1"]),
        ("podman run -i img", "podman run", ["img"]),
        ("deno run -A npm:a@1 x", "deno", ["npm:a@1"]),
        ("deno run --allow-net https://x/y.ts", "deno", ["https://x/y.ts"]),
        ("cmd /c npx -y a", "npx", ["a"]),
        ("sh -c 'exec npx -y a \"$HOME\" 2>/dev/null'", "npx", ["a"]),
        ("bash -lc 'TOKEN=1 uvx a; true'", "uvx", ["a"]),
        ("env A=1 npx a", "npx", ["a"]),
        ("npx --registry https://r.example --loglevel silent a", "npx", ["a"]),
        ("npx --package=a -c 'b --port 1'", "npx", ["a"]),
        ("npm --prefix /x exec a", "npm exec", ["a"]),
        ("uvx --index-url https://r.example --with=b --from a==1 run", "uvx", ["a==1", "b"]),
        ("uv --offline tool run a", "uv tool run", ["a"]),
        ("uvx.exe a", "uvx", ["a"]),
        ("docker --context far run --name=x -v /a:/b img", "docker run", ["img"]),
        ("deno run -A --config /x.json npm:a", "deno", ["npm:a"]),
    ],
)
def test_what_a_package_runner_fetches(line: str, runner: str, packages: list[str]) -> None:
    assert run_of(line) == PackageRun(runner, tuple(packages))


@pytest.mark.parametrize(
    "line",
    [
        "npx",
        "npm run start",
        "uv run server.py",
        "docker ps",
        "deno run main.ts",
        "python -m server",
        "sh server.sh",
        "sh -c 'cd /x && npx a'",
        "sh -c 'unclosed \" quote'",
        "env -i npx a",
        "pipx list",
        "npx --call",
        "npx --registry https://r.example",
        "npm init a",
        "yarn exec a",
        "docker run --rm",
        "deno run main.ts https://x.example/y",
        "python -m uv tool run a",
        "nohup npx a",
    ],
)
def test_other_commands_fetch_nothing(line: str) -> None:
    assert run_of(line) is None


def test_the_same_package_is_the_same_whatever_the_server_is_given() -> None:
    one, other = run_of("npx -y a /one"), run_of("npm exec -y a -- /other")
    assert one is not None
    assert other is not None
    assert one.key({"HOME": "/h", "TOKEN": "1"}) == other.key({"HOME": "/h", "TOKEN": "2"})
    assert one.key({"HOME": "/h"}) != one.key({"HOME": "/h", "npm_config_cache": "/elsewhere"})
    assert one.key({}) != PackageRun("npx", ("a@2",)).key({})
    assert one.key({}) != PackageRun("uvx", ("a",)).key({})


@given(st.lists(st.text(string.printable, max_size=12), min_size=1, max_size=6))
def test_no_command_line_is_too_odd_to_be_read(words: list[str]) -> None:
    for command in ("npx", "sh", "env", "docker", "deno", "uvx"):
        found = package_run(command, words)
        assert found is None or (found.packages[0] and found.key({}))


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("npx -y @playwright/mcp@latest --headless", "a browser"),
        ("cmd /c npx @playwright/mcp", "a browser"),
        ("docker run -i --rm mcr.microsoft.com/playwright/mcp:v1", "a browser"),
        ("uvx --from browser-use[cli]==0.7 browser-use --mcp", "a browser"),
        ("node /opt/node_modules/@playwright/mcp/cli.js", "a browser"),
        ("/usr/local/bin/chrome-devtools-mcp", "a browser"),
        ("npx -y @modelcontextprotocol/server-sequential-thinking", "a line of thoughts"),
        ("uvx jupyter-mcp-server", "a notebook and its kernel"),
        ("npx -y @modelcontextprotocol/server-filesystem /srv", ""),
        ("npx -y server-about @playwright/mcp", ""),
        ("python3 -m http.server", ""),
        ("x", ""),
    ],
)
def test_servers_that_keep_something_for_one_client_are_known_by_their_packages(line: str, kept: str) -> None:
    command, *words = line.split()
    assert kept_state(command, words) == kept
