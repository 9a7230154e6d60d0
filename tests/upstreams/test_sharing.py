"""Which clients share a server's process: those for whom it is started alike, from wherever they work."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import GatewayError
from pml_gateway.mcp.transport import process_parameters, resolved_headers
from pml_gateway.processes.confinement.start import ProgramOfFolderError
from pml_gateway.secrets.references import resolve_in
from pml_gateway.upstreams.sharing import SharedBy, shared_by, wanted_upstreams
from pml_gateway.working_directory import WorkingDirectory
from tests.support.examples import examples

DEFAULTS = UpstreamSettings()


def definition(**entry: Any) -> UpstreamDefinition:
    return UpstreamDefinition.model_validate(entry)


def key(
    entry: UpstreamDefinition,
    working_directory: WorkingDirectory,
    defaults: UpstreamSettings = DEFAULTS,
    server: str = "up",
) -> Hashable:
    return wanted_upstreams({server: entry}, defaults, working_directory)[server].key


@pytest.fixture
def places(tmp_path: Path) -> tuple[WorkingDirectory, WorkingDirectory]:
    """Two clients of one person, in projects of which the first has some files."""
    one, two, home = tmp_path / "one", tmp_path / "two", tmp_path / "home"
    for folder in (one / "src" / "tool", one / "node_modules" / "@scope" / "local", one / "sub", two, home):
        folder.mkdir(parents=True)
    for file in ("server.py", "word", "sub/runner", "sub/here", "run"):
        (one / file).write_text("#!/bin/sh\n", encoding="utf-8")
        (one / file).chmod(0o755)
    (home / "at-home.py").touch()
    for folder in (one, two):
        (folder / "local.env").touch()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TOKEN": "t0ken", "RELATIVE": "./x"}
    return WorkingDirectory(one, environ), WorkingDirectory(two, environ)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "x", "args": ["./data"]}, "argument './data' is relative"),
        ({"command": "x", "args": ["--root=../data"]}, "argument '--root=../data' is relative"),
        ({"command": "x", "args": ["--root", "."]}, "argument '.' is relative"),
        ({"command": "x", "args": ["${env:RELATIVE}"]}, "argument '${env:RELATIVE}' is relative"),
        ({"command": "x", "args": ["--config=server.py"]}, "argument '--config=server.py' is relative"),
        ({"command": "x", "cwd": "sub"}, "cwd 'sub' is relative"),
        ({"command": "x", "env_file": "local.env"}, "env_file 'local.env' is relative"),
        ({"command": "x", "env": {"DB": "./x.db"}}, "env.DB is relative"),
        ({"command": "x", "args": ["${cwd}"]}, "args[0] uses ${cwd}"),
        ({"command": "x", "env": {"ROOT": "a:${workspaceFolder}"}}, "env.ROOT uses ${workspaceFolder}"),
        ({"command": "x", "cwd": "${workspaceFolder}"}, "cwd uses ${workspaceFolder}"),
        ({"url": "https://x.example/${cwd}"}, "url uses ${cwd}"),
        ({"url": "https://x.example/", "headers": {"X-Root": "${cwd}"}}, "headers.X-Root uses ${cwd}"),
        ({"url": "https://x.example/", "sessions": "per_folder"}, "sessions: per_folder"),
        ({"command": "x", "cwd": "/", "sessions": "per_folder"}, "sessions: per_folder"),
    ],
)
def test_a_server_that_depends_on_the_folder_is_shared_in_it_only(
    places: tuple[WorkingDirectory, WorkingDirectory], entry: dict[str, Any], reason: str
) -> None:
    one, two = places
    found = shared_by(definition(**entry), one)
    assert found.by is SharedBy.FOLDER
    assert reason in found.reason
    assert found.place == one
    assert key(definition(**entry), one) == key(definition(**entry), replace(one, environ={**one.environ, "X": "1"}))
    assert key(definition(**entry), one) != key(definition(**entry), two)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "python3", "args": ["server.py"]}, "argument 'server.py' says what runs"),
        ({"command": "python3", "args": ["at-home.py"]}, "argument 'at-home.py' says what runs"),
        ({"command": "node", "args": ["sub/runner", "--x"]}, "argument 'sub/runner' says what runs"),
        ({"command": "./run"}, "command './run' is relative"),
        ({"command": "here", "env": {"PATH": "sub:/bin"}}, "env.PATH says what code runs"),
        ({"command": "uv", "args": ["run", "tool"]}, "'uv run' works on the project that it is started in"),
        ({"command": "npm", "args": ["start"]}, "'npm start' works on the project that it is started in"),
        ({"command": "make", "args": ["serve"]}, "'make' works on the project that it is started in"),
    ],
)
def test_a_server_whose_program_the_folder_would_choose_is_not_started(
    places: tuple[WorkingDirectory, WorkingDirectory], entry: dict[str, Any], reason: str
) -> None:
    one, two = places
    found = shared_by(definition(**entry), one)
    assert (found.by, found.place) == (SharedBy.FOLDER, one)
    assert reason in found.reason
    assert key(definition(**entry), one) != key(definition(**entry), two)
    with pytest.raises(ProgramOfFolderError, match=r"servers\.up\.sessions to per_folder"):
        process_parameters("up", definition(**entry), one)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "python3", "args": ["-m", "src.tool"]}, "argument 'src.tool' is relative"),
        ({"command": "python3", "args": ["-m", "server"]}, "argument 'server' is relative"),
        ({"command": "npx", "args": ["-y", "@scope/local"]}, "is installed in this folder"),
        ({"command": "uv", "args": ["run", "tool"]}, "uv run works on the project that it is started in"),
        ({"command": "python3", "args": ["server.py"]}, "argument 'server.py' is relative"),
    ],
)
def test_an_approved_project_chooses_programs(
    places: tuple[WorkingDirectory, WorkingDirectory], entry: dict[str, Any], reason: str
) -> None:
    one, _ = places
    file = one.folder / ".pml.yaml"
    file.write_text("gateway: {intent: x}\n", encoding="utf-8")
    TrustStore(one.home / ".pml" / "trust.json").trust(file, file.read_bytes())
    found = shared_by(definition(**entry), one)
    assert found.by is SharedBy.FOLDER
    assert reason in found.reason
    assert process_parameters("up", definition(**entry), found.place).cwd == one.folder
    file.write_text("gateway: {intent: y}\n", encoding="utf-8")
    assert shared_by(definition(**entry), one).reason != found.reason


GUISES: dict[str, list[str]] = {
    "a shell": ["sh", "-c", 'exec /srv/tool "$PWD"'],
    "a shell that goes elsewhere": ["sh", "-c", "cd sub && /srv/tool"],
    "a login shell": ["bash", "-lc", "exec /srv/tool ./notes.db"],
    "a package and the folder": ["sh", "-c", 'npx -y pkg "$PWD"'],
    "a package and a file": ["sh", "-c", "npx -y pkg 'my notes.db'"],
    "a file that is not there": ["x", "--db", "data.db"],
    "a folder that is not there": ["x", "made/later"],
    "a folder, said to be one": ["npx", "-y", "pkg", "data/"],
    "a deep folder": ["npx", "-y", "pkg", "data/of/mine"],
    "a volume": ["docker", "run", "-v", ".:/work", "image"],
    "a mount": ["docker", "run", "--mount", "type=bind,src=.,dst=/w", "image"],
    "a file for a container": ["docker", "run", "--env-file", ".env", "image"],
    "compose": ["docker", "compose", "run", "tool"],
    "glued": ["x", "-d./sub"],
    "glued without a dot": ["x", "-dsub"],
    "a list": ["x", "--dirs=/abs,notes.db"],
    "a list of what is there": ["x", "--dirs=other,sub"],
    "a list of absolute and relative ones": ["x", "/abs:./own"],
    "a file of arguments": ["x", "@notes.db"],
    "a form": ["x", "-F", "file=@notes.db"],
    "a database": ["uvx", "tool", "sqlite:///notes"],
    "one with a driver": ["uvx", "tool", "sqlite+aiosqlite:///notes"],
    "one without slashes": ["x", "jdbc:sqlite:notes.db"],
    "a file's address": ["x", "file:./dev"],
    "a variable of env": ["env", "DB=./notes.db", "tool"],
    "env": ["env", "A=1", "uv", "run", "tool"],
    "a package in the folder": ["npx", "-y", "./tool"],
    "an archive": ["uvx", "--from", "dist/tool.whl", "tool"],
    "JSON": ["x", '{"root": "./sub"}'],
    "a script": ["node", "build/index.js"],
    "Windows": ["x", "data\\new.db"],
}


@pytest.mark.parametrize("line", GUISES.values(), ids=GUISES)
def test_relative_paths_are_known_in_every_guise(
    places: tuple[WorkingDirectory, WorkingDirectory], line: list[str]
) -> None:
    one, two = places
    entry = definition(command=line[0], args=line[1:])
    assert shared_by(entry, one).by is SharedBy.FOLDER
    assert key(entry, one) != key(entry, two)
    assert shared_by(entry.model_copy(update={"sessions": "shared"}), one).by is SharedBy.EVERYBODY


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("x", {"DB_PATH": "server.py"}),
        ("x", {"DB_PATH": "data/new.db"}),
        ("npx", {"DB_PATH": "new.db"}),
        ("x", {"DATA_DIR": "sub"}),
        ("x", {"DIRS": "./a:./b"}),
        ("x", {"ROOTS": "/abs:sub"}),
        ("x", {"URL": "sqlite:///notes"}),
        ("x", {"ROOT": "$PWD"}),
        ("x", {"FOLDERS": '["sub"]'}),
        ("x", {"ROOT": "made/later"}),
    ],
)
def test_relative_paths_are_known_in_variables_as_well(
    places: tuple[WorkingDirectory, WorkingDirectory], command: str, env: dict[str, str]
) -> None:
    entry = definition(command=command, args=["-y", "pkg"], env=env)
    found = shared_by(entry, places[0])
    assert (found.by, found.reason) == (SharedBy.FOLDER, f"env.{next(iter(env))} is relative")


@pytest.mark.parametrize(
    ("command", "args", "env", "made"),
    [
        ("x", ["--db", "data.db"], {}, "data.db"),
        ("x", ["made/later"], {}, "made/later"),
        ("x", [], {"DB_PATH": "data.db"}, "data.db"),
        ("npx", ["-y", "pkg"], {"NODE_ENV": "dev", "TOOLS": "issues,docs"}, "docs"),
        ("npx", ["-y", "chart.js"], {}, "chart.js"),
        ("docker", ["run", "-e", "DB=data.db", "image", "--db", "data.db"], {"DB": "data.db"}, "data.db"),
    ],
)
def test_what_is_made_later_changes_nothing(
    places: tuple[WorkingDirectory, WorkingDirectory], command: str, args: list[str], env: dict[str, str], made: str
) -> None:
    one, _ = places
    entry = definition(command=command, args=args, env=env)
    before = shared_by(entry, one)
    for folder in (one.folder, one.home):
        (folder / made).parent.mkdir(exist_ok=True)
        (folder / made).touch()
        assert shared_by(entry, one) == before


@pytest.mark.parametrize(
    "line",
    [
        "npx -y @modelcontextprotocol/server-github",
        "npx -y @modelcontextprotocol/server-filesystem /srv ~/notes",
        "npx -y mcp-remote@0.1.2 https://mcp.example.com/sse --header Authorization:Bearert0ken",
        "npx mcp-remote http://localhost:3000/mcp --header 'Authorization: Bearer wJalrXUtnFEMI/K7/bPxRfiCYEXAMPLE=='",
        'npx -y @smithery/cli@latest run @owner/name --config \'{"key":"v"}\'',
        "npx -y mcp-hfspace Qwen/QVQ-72B owner/repo --model gpt-4.1 --port 8080",
        "npx -y github:owner/repo next.js@14",
        "npx -y chart.js",
        "npm exec -y -- pkg --type=application/json --accept */*",
        "pnpm dlx pkg --db mysql://u:p@db.example:3306/name",
        "uvx mcp-server-time --local-timezone=America/Argentina/Buenos_Aires",
        "uvx mcp-server-fetch --user-agent 'ModelContextProtocol/1.0 (plain words)'",
        "uvx --from git+https://github.com/owner/repo.git tool --python 3.12",
        "uvx --from mcp[cli]==1.2.3 --with httpx>=0.27 mcp",
        "uvx tool sqlite:////abs/notes.db postgresql+psycopg://localhost/db sqlite:///:memory:",
        "uv tool run pkg@latest",
        "pipx run --spec pkg==1.0 tool",
        "docker run -i --rm -e GITHUB_TOKEN ghcr.io/github/github-mcp-server stdio --toolsets repos,issues",
        "docker run -i --rm -e DB=notes.db --name a/b -v /srv:/work:ro -v named:/data mcp/sqlite:1.0 --db data/x.db",
        "docker run -i --mount type=bind,src=/srv,dst=/w localhost:5000/x/y@sha256:abc sh -c 'cd sub && run'",
        "podman run -i --rm docker.io/mcp/fetch",
        "python3 -m mcp_server_time --local-timezone Europe/Berlin --model openai/gpt-4.1",
        "python -m package.db",
        "deno run -A npm:pkg@1",
        "cmd /c npx -y @scope/pkg",
        "sh -c 'exec npx -y @scope/pkg \"$TOKEN\" 2>/dev/null'",
        "bash -lc 'A=1 uvx pkg --tz Europe/Berlin'",
        "bash -l -c 'npx -y pkg'",
        "/bin/zsh -i -c tool",
        "cmd /c tool",
        "powershell.exe -NoProfile -Command tool",
        "env -i A=1 sh -c tool",
        "sh -c 'npx -y pkg; tool'",
        "bash -lc 'source ~/.nvm/nvm.sh && npx -y pkg'",
        "uv --directory /srv/weather run weather.py",
        "npx -y pkg mcp start",
        "env A=1 npx -y pkg",
        "/opt/tool/bin/server --host localhost:5432 --level info --cidr 10.0.0.0/8 -v -p 80 --size 1.5 a@b.example",
        "/opt/tool/bin/server 'C:\\data\\x.db' D:/data/x.db ghcr.io/x/y $HOME/notes.db --",
        "java -jar /opt/tool.jar",
    ],
)
def test_words_that_are_no_paths_leave_a_server_to_everybody(
    places: tuple[WorkingDirectory, WorkingDirectory], line: str
) -> None:
    command, *args = shlex.split(line)
    found = shared_by(definition(command=command, args=args), places[1])
    assert (found.by, found.reason) == (SharedBy.EVERYBODY, "")


@pytest.mark.parametrize(
    "env",
    [
        {"EMBEDDING_MODEL": "sentence-transformers/all-MiniLM-L6-v2", "TZ": "Europe/Berlin", "LANG": "C"},
        {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_REGION": "eu-central-1"},
        {"HEADERS": '{"Authorization": "Bearer ntn_1", "Notion-Version": "2022-06-28"}'},
        {"NODE_ENV": "sub", "LOG_LEVEL": "word", "TOOLSETS": "repos,sub"},
        {"DATABASE_URL": "postgresql://u:p@db.example/name", "HOST": "db.example.com:443", "RATE": "0.5"},
        {"DATA_DIR": "/srv/data", "CACHE": "~/cache", "PATH": "/opt/bin:/bin"},
    ],
)
def test_variables_that_hold_no_paths_leave_a_server_to_everybody(
    places: tuple[WorkingDirectory, WorkingDirectory], env: dict[str, str]
) -> None:
    found = shared_by(definition(command="npx", args=["-y", "pkg"], env=env), places[0])
    assert (found.by, found.reason) == (SharedBy.EVERYBODY, "")


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "@scope/pkg", "owner/image:tag", "pkg@1", "https://x.example/a"]},
        {"command": "uvx", "args": ["mcp-server-time", "--local-timezone=Europe/Berlin", "-v"]},
        {"command": "docker", "args": ["run", "-i", "--rm", "ghcr.io/github/github-mcp-server"]},
        {"command": "npx", "args": ["-y", "word"]},
        {"command": "x", "args": ["/abs/path", "~/data", "C:\\data", "postgresql://localhost/db", "--", "-"]},
        {"command": "python3", "args": ["server.py"], "cwd": "/"},
        {"command": "./run", "cwd": "~"},
        {"command": "x", "env_file": "~/own.env", "cwd": "/"},
        {"command": "x", "args": ["$${cwd}"]},
        {"command": "uv", "args": ["run", "--directory", "/srv/tool", "tool"]},
        {"command": "x", "args": ["./data"], "sessions": "shared"},
        {"url": "https://x.example/mcp"},
    ],
)
def test_a_server_that_does_not_depend_on_it_is_everybodys_and_runs_at_home(
    places: tuple[WorkingDirectory, WorkingDirectory], entry: dict[str, Any]
) -> None:
    one, two = places
    found = shared_by(definition(**entry), one)
    assert (found.by, found.reason) == (SharedBy.EVERYBODY, "")
    assert found.place.folder == one.home
    assert key(definition(**entry), one) == key(definition(**entry), two)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"url": "https://x.example", "sessions": "per_client"}, "sessions: per_client"),
        ({"command": "npx", "args": ["@playwright/mcp@latest"]}, "keeps a browser from call to call"),
    ],
)
def test_a_server_of_single_clients_starts_in_their_folders(
    places: tuple[WorkingDirectory, WorkingDirectory], entry: dict[str, Any], reason: str
) -> None:
    one, two = places
    found = shared_by(definition(**entry), one)
    assert found.by is SharedBy.CLIENT
    assert reason in found.reason
    assert found.place == one
    assert key(definition(**entry), one) != key(definition(**entry), two)


@pytest.mark.parametrize("sessions", ["per_folder", "per_client"])
def test_a_folder_that_takes_the_name_of_another_is_another(
    places: tuple[WorkingDirectory, WorkingDirectory], sessions: str
) -> None:
    one, _ = places
    entry = definition(command="x", sessions=sessions)
    before = key(entry, one)
    assert key(entry, one) == before
    one.folder.rename(one.folder.with_name("moved"))
    gone = key(entry, one)
    one.folder.mkdir()
    assert len({before, gone, key(entry, one)}) == 3


def test_what_a_setting_says_of_a_server_goes_before_what_is_known_of_it(
    places: tuple[WorkingDirectory, WorkingDirectory],
) -> None:
    shared = definition(command="npx", args=["@playwright/mcp"], sessions="shared")
    assert shared_by(shared, places[0]).by is SharedBy.EVERYBODY


def test_what_a_variable_stands_for_counts_and_where_it_comes_from_does_not(
    places: tuple[WorkingDirectory, WorkingDirectory],
) -> None:
    one, _ = places
    entry = definition(command="x", env={"A": "${env:TOKEN}"})
    other = replace(one, environ={**one.environ, "TOKEN": "an0ther-t0ken"})
    unrelated = replace(one, environ={**one.environ, "WINDOW": "7"})
    assert key(entry, one) != key(entry, other)
    assert key(entry, one) == key(entry, unrelated)
    assert key(entry, one) == key(definition(command="x", env={"A": "t0ken"}), one)
    assert key(entry, one) != key(entry, replace(one, environ={**one.environ, "PATH": "/bin"}))


def test_the_rest_of_a_definition_and_the_defaults_count_as_far_as_they_matter(
    places: tuple[WorkingDirectory, WorkingDirectory],
) -> None:
    one, _ = places
    entry = definition(command="x")
    assert key(entry, one) != key(definition(command="x", call_timeout=5), one)
    assert key(entry, one) != key(entry, one, UpstreamSettings(max_queue=3))
    assert key(entry, one) == key(definition(command="x", sessions="shared"), one)
    assert key(entry, one) != key(entry, one, server="down")
    login = {"type": "client_credentials", "client_id": "a", "client_secret": "${env:TOKEN}", "issuer": "https://i.x"}
    remote = definition(url="https://x.example", auth=login)
    assert key(remote, one) != key(remote, replace(one, environ={**one.environ, "TOKEN": "an0ther-t0ken"}))


def test_clients_of_different_proxies_or_authorities_share_no_remote_server(
    places: tuple[WorkingDirectory, WorkingDirectory],
) -> None:
    one, two = places
    remote = definition(url="https://x.example/mcp")
    ways: list[dict[str, str]] = [
        {},
        {"HTTPS_PROXY": "http://p:1"},
        {"HTTPS_PROXY": "http://p:2"},
        {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "y.example"},
        {"SSL_CERT_FILE": "/own.pem"},
        {"SSL_CERT_DIR": "/own.pem"},
    ]
    clients = [[replace(each, environ={**each.environ, **way}) for each in places] for way in ways]
    assert len({key(remote, client) for client, _ in clients}) == len(ways)
    assert [key(remote, client) for client, _ in clients] == [key(remote, other) for _, other in clients]
    relative = replace(two, environ={**one.environ, "SSL_CERT_FILE": "own.pem"})
    assert shared_by(remote, relative).reason == "SSL_CERT_FILE is relative"


def test_those_who_cannot_be_served_yet_do_not_share(places: tuple[WorkingDirectory, WorkingDirectory]) -> None:
    """What they lack may come, and then each is to be served with its own."""
    one, _ = places
    entry = definition(command="x", env={"A": "${env:MISSING}", "B": "${env:TOKEN}"})
    assert key(entry, one) == key(entry, one)
    assert key(entry, one) != key(entry, replace(one, environ={**one.environ, "TOKEN": "an0ther-t0ken"}))
    assert key(definition(command="x", env={"A": "${env:OTHER}"}), one) != key(entry, one)


def test_files_that_say_the_same_today_are_not_shared(places: tuple[WorkingDirectory, WorkingDirectory]) -> None:
    one, _ = places
    for name in ("a", "b"):
        (one.home / name).write_text("same", encoding="utf-8")
    entries = [definition(url="https://x.example", headers={"X": f"${{file:~/{name}}}"}) for name in ("a", "b")]
    assert key(entries[0], one) != key(entries[1], one)


def test_neither_a_key_nor_a_reason_shows_a_secret(places: tuple[WorkingDirectory, WorkingDirectory]) -> None:
    one, _ = places
    entry = definition(command="x", args=["./${env:TOKEN}", "--token=./s3cret-s3cret"])
    assert "t0ken" not in repr(key(entry, one))
    assert "t0ken" not in shared_by(entry, one).reason


TEXTS = st.sampled_from(
    ["x", "", "./a", "a.txt", "${cwd}", "$${cwd}", "${env:A}", "${env:B:-b}", "${workspaceFolder}/a.txt", "/abs", "~/a"]
)
DEFINITIONS = st.one_of(
    st.fixed_dictionaries(
        {"command": st.sampled_from(["sh", "./sh", "nowhere", "tool", "~/tool"])},
        optional={
            "args": st.lists(TEXTS, max_size=2),
            "env": st.dictionaries(st.sampled_from(["A", "X"]), TEXTS, max_size=2)
            | st.just({"PATH": "sub:/bin"})
            | st.just({"PATH": "/bin"}),
            "cwd": st.sampled_from(["/", "sub", "${cwd}", "~"]),
            "env_file": st.sampled_from(["a.env", "~/a.env", "${cwd}/a.env"]),
            "sessions": st.sampled_from(["shared", "per_folder", "per_client"]),
            "call_timeout": st.just(5),
        },
    ),
    st.fixed_dictionaries(
        {"url": st.sampled_from(["https://x.example/", "https://x.example/${env:A}"])},
        optional={"headers": st.dictionaries(st.just("X-A"), st.sampled_from(["a", "${env:A}", "${cwd}"]))},
    ),
).map(lambda entry: UpstreamDefinition.model_validate(entry))


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("one", "two"):
            (folder / name / "sub").mkdir(parents=True)
            (folder / name / "a.env").write_text("F=1\n", encoding="utf-8")
        (folder / "home").mkdir()
        for tool in (folder / "one" / "sub" / "tool", folder / "home" / "tool", folder / "one" / "a.txt"):
            tool.write_text("#!/bin/sh\n", encoding="utf-8")
            tool.chmod(0o755)
        (folder / "home" / "a.env").write_text("F=2\n", encoding="utf-8")
        yield folder


WORKPLACES = st.builds(
    lambda folder, variables: (folder, variables),
    st.sampled_from(["one", "two"]),
    st.dictionaries(st.sampled_from(["A", "B", "UNUSED"]), st.sampled_from(["x", "/abs"]), max_size=2),
)


def place(root: Path, drawn: tuple[str, dict[str, str]]) -> WorkingDirectory:
    folder, variables = drawn
    return WorkingDirectory(root / folder, {"PATH": "/usr/bin:/bin", "HOME": str(root / "home"), **variables})


def start(entry: UpstreamDefinition, working_directory: WorkingDirectory) -> object:
    """How the child is started, or the request sent."""
    if entry.url is not None:
        return resolve_in(entry.url, working_directory), resolved_headers(entry, working_directory)
    return process_parameters("up", entry, working_directory)


@settings(max_examples=examples(150))
@given(first=DEFINITIONS, second=DEFINITIONS, drawn=st.tuples(WORKPLACES, WORKPLACES), same=st.booleans())
def test_keys_are_equal_exactly_where_the_children_are_started_alike(
    root: Path,
    first: UpstreamDefinition,
    second: UpstreamDefinition,
    drawn: tuple[Any, Any],
    same: bool,
) -> None:
    second = first if same else second
    here, there = place(root, drawn[0]), place(root, drawn[1])
    try:
        starts = start(first, shared_by(first, here).place), start(second, shared_by(second, there).place)
    except GatewayError:
        is_alike = (first, here) == (second, there)
        assert not is_alike or key(first, here) == key(second, there)
        return
    bound = [sharing.by is not SharedBy.EVERYBODY for sharing in (shared_by(first, here), shared_by(second, there))]
    files = [each.env_file and Path(each.env_file).name for each in (first, second)]
    is_alike = (
        starts[0] == starts[1]
        and bound[0] == bound[1]
        and (not bound[0] or here.folder == there.folder)
        and (first.resolved_sessions, first.call_timeout) == (second.resolved_sessions, second.call_timeout)
        and files[0] == files[1]
    )
    assert (key(first, here) == key(second, there)) == is_alike


@settings(max_examples=examples(60))
@given(entry=DEFINITIONS, drawn=WORKPLACES)
def test_nothing_but_the_folder_of_what_is_everybodys_differs_at_home(
    root: Path, entry: UpstreamDefinition, drawn: Any
) -> None:
    here = place(root, drawn)
    sharing = shared_by(entry, here)
    if sharing.by is not SharedBy.EVERYBODY or entry.command is None or entry.sessions == "shared":
        return
    try:
        mine = process_parameters("up", entry, here)
    except GatewayError:
        with pytest.raises(GatewayError):
            process_parameters("up", entry, sharing.place)
        return
    shared = process_parameters("up", entry, sharing.place)
    assert (mine.command, mine.args, mine.env) == (shared.command, shared.args, shared.env)
    assert entry.cwd is None or mine.cwd == shared.cwd
