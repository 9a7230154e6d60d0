"""The leak matrix: whatever a client asks, what it is not given is answered as if it did not exist.

Two gateways are asked the same: one hides things from the client by sets, and behind the other they do not exist. Every
answer is compared, byte for byte, for each way of being given a set, each spelling of one, and both protocol eras.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.shared.exceptions import MCPError

from benchmarks.client import AnswerError, Era
from benchmarks.stdio_client import open_stdio_client
from tests.extensions.test_relay import SHOWS_APPS
from tests.extensions.test_skills import METHODS, SKILLS, entry
from tests.support.machine import open_machine
from tests.support.process import SERVE, end_gateway, environment, run_pml, serve_alone, write_settings
from tests.support.raw import META, HandshakeSession, decoded
from tests.support.scripted_server import (
    PROMPTS,
    RESOURCES,
    ScriptedServer,
    prompt,
    resource,
    template,
    text_result,
    tool,
)
from tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

READ, WRITE = {"readOnlyHint": True}, {"readOnlyHint": False, "destructiveHint": False}
KEY = "key-of-ada-0123456789"
PAGE = {"ui": {"resourceUri": "ui://dark/view.html", "visibility": ["app"]}}
EXTENDED = METHODS | {"x/run"}
META_TOOLS = [
    *("search_tools", "tool_schema", "call_tool", "call_batch", "execute_workflow", "read_result", "gateway_info"),
    *("call_tool_read", "call_tool_write", "call_tool_destructive"),
]
SPELLINGS: dict[str, dict[str, Any]] = {
    "include": {
        "include": ["up:look", "up:show", "up:hello", "up:file:///srv/*", "up:db:///*", "workflows:fine", "any"]
    },
    "exclude": {"exclude": ["up:secret*", "dark", "up:file:///etc/*", "up:sec:///*"]},
    "effects": {
        "include": ["up", "workflows", "any"],
        "effects": ["read"],
        "exclude": ["up:secret_prompt", "up:file:///etc/*", "up:sec:///*"],
    },
}
FINE = {"description": "Look twice.", "steps": [{"tool": "up:look"}, {"tool": "up:look"}]}
LEAKY = {"description": "Tell the secret.", "steps": [{"tool": "up:look"}, {"tool": "up:secret"}]}
RULES = [
    {"match": {"tool": ["up:secret", "glow"]}, "do": "ask"},
    {"match": {"server": "dark", "where": "of == 'x'"}, "do": "deny"},
    {"match": {"tool": "workflows:leaky"}, "do": "deny"},
]
"""Rules about calls that name what is hidden tell nothing of it either."""
HIDDEN = (
    *("up__secret", "up:secret", "secret", "up/secret", "UP__SECRET", "mcp__pml__up__secret", "/up__secret"),
    *("dark__glow", "dark:glow", "glow", "dark", "dark__panel", "dark:panel"),
    *("workflows__leaky", "workflows:leaky", "leaky"),
)
PROMPT_NAMES = ("secret_prompt", "up__secret_prompt", "up:secret_prompt", "night", "dark__night", "dark:night")
URIS = (
    *("file:///etc/passwd", "file:///srv/../etc/passwd", "FILE:///etc/passwd", "pml://up/file:///etc/passwd"),
    *("sec:///1", "note://dark", "pml://dark/note://dark", "skill://mail/SKILL.md", "ui://dark/view.html"),
)


def bright(*, hides: bool) -> ScriptedServer:
    """The server that the client is given a part of; without what it is not given unless it `hides` that."""

    async def handler(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result(f"{call['name']} {call.get('arguments')}")

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "resources/read" if not str(params["uri"]).startswith(("file:", "db:", "sec:")):
                # As servers say it, and the gateway too.
                raise MCPError(-32002, f"Resource not found: {params['uri']}", {"uri": params["uri"]})
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": "text"}], "ttlMs": 0, "cacheScope": "private"}
            case "prompts/get":
                return {"messages": []}
            case "completion/complete":
                return {"completion": {"values": ["a"]}}
            case "x/run" if not str(params.get("uri", "file:")).startswith(("file:", "db:", "sec:")):
                raise MCPError(-32601, "Method not found", method)
            case "x/run":
                return {"ran": params.get("name") or params.get("uri")}
        return None

    shown = [tool("look", annotations=READ), tool("show", "Show a chart.", annotations=READ)]
    return ScriptedServer(
        [*shown, *([tool("secret", "Tell a secret word.", annotations=WRITE)] if hides else [])],
        handler,
        prompts=[prompt("hello"), *([prompt("secret_prompt")] if hides else [])],
        resources=[resource("file:///srv/readme"), *([resource("file:///etc/passwd")] if hides else [])],
        templates=[template("db:///{table}"), *([template("sec:///{id}")] if hides else [])],
        methods=PROMPTS | RESOURCES,
        declares={"completions": {}, "extensions": {"x.test/run": {}}},
        beyond=frozenset({"x/run"}),
        answer=answer,
        instructions="Look around.",
    )


def dark() -> ScriptedServer:
    """The server that the client is given nothing of."""

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "skills/list":
                return {"skills": [entry("mail")], "ttlMs": 0, "cacheScope": "private"}
            case "skills/get":
                return {"skill": entry("mail"), "ttlMs": 0, "cacheScope": "private"}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": "dark"}], "ttlMs": 0, "cacheScope": "private"}
        return None

    return ScriptedServer(
        [tool("glow", "Glow in the dark.", annotations=READ), tool("panel", annotations=READ, _meta=PAGE)],
        prompts=[prompt("night")],
        resources=[resource("note://dark"), resource("skill://mail/SKILL.md"), resource("ui://dark/view.html")],
        methods=PROMPTS | RESOURCES,
        declares={"extensions": {SKILLS: {}}},
        beyond=EXTENDED,
        answer=answer,
        instructions="Only at night.",
    )


def anything() -> ScriptedServer:
    """A server that reads any URI, by which it could show that another one has it."""

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "resources/read":
            return None
        return {"contents": [{"uri": params["uri"], "text": "any"}], "ttlMs": 0, "cacheScope": "private"}

    return ScriptedServer([], resources=[resource("any://a")], methods=RESOURCES, answer=answer)


def servers(*, hides: bool) -> dict[str, ScriptedServer]:
    return {"up": bright(hides=hides), "any": anything(), **({"dark": dark()} if hides else {})}


def requests(spellings: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry point, with so many names of what is hidden, by default all, and with what is not beside it."""
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "skills/list"):
        yield method, {}
    yield "tools/list", {"query": "tell a secret word, glow in the dark"}

    def call(name: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return "tools/call", {"name": name, "arguments": arguments}

    yield call("gateway_info")
    yield call("gateway_info", section="tokens")
    for query in ("tell a secret word", "glow in the dark", "*", "secret*", "up__secret", "dark"):
        yield call("search_tools", query=query)
        yield call("search_tools", query=query, server="dark")
    for name in HIDDEN[:spellings]:
        yield call(name)
        yield "tools/call", {"name": name, "arguments": {}, "task": {}}
        yield call("tool_schema", name=name)
        for caller in ("call_tool", "call_tool_read", "call_tool_write", "call_tool_destructive"):
            yield call(caller, name=name, arguments={})
        yield call("call_batch", calls=[{"name": "up__look"}, {"name": name}])
        for dry_run in (False, True):
            steps = [{"id": "a", "tool": "up__look"}, {"id": "b", "tool": name, "arguments": {"of": "{{ a.result }}"}}]
            yield call("execute_workflow", steps=steps, dry_run=dry_run)
        yield call("dark", action=name)
        yield call("up", action=name)
        yield "x/run", {"name": name}
    for name in PROMPT_NAMES[:spellings]:
        yield "prompts/get", {"name": name}
        given = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": "b"}}
        yield "completion/complete", given
        yield "x/run", {"name": name}
    for uri in URIS[:spellings]:
        yield "resources/read", {"uri": uri}
        yield "resources/subscribe", {"uri": uri}
        given = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": "b"}}
        yield "completion/complete", given
        yield "x/run", {"uri": uri}
        yield "skills/get", {"uri": uri}
        yield call("read_result", ref=uri)
    yield call("workflows__fine")
    yield call("up__look")
    yield "resources/read", {"uri": "file:///srv/readme"}
    yield "prompts/get", {"name": "hello"}


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
CHANGING = re.compile(
    r"\b[0-9a-f]{22,32}\b|\br_[a-zA-Z0-9]+|\btask_[\w-]+|\d{4}-\d\d-\d\dT[\d:.]+Z|"
    r"\"(duration_ms|seconds|pid)\\?\": [0-9.]+"
)


async def answers(ask: Ask, begins: Any, spellings: int | None = None) -> dict[str, str]:
    """The answer to each request as a text, without what differs from one moment to the next."""
    found = {"begins": json.dumps(begins, sort_keys=True)}
    for number, (method, params) in enumerate(requests(spellings)):
        with anyio.fail_after(60):
            answer = await ask(method, params)
        found[f"{number} {method} {json.dumps(params)}"] = json.dumps(answer, sort_keys=True)
    return {asked: CHANGING.sub("*", text) for asked, text in found.items()}


def sections(way: str, spelling: str, *, hides: bool, style: str) -> dict[str, Any]:
    """The configuration that gives the set `part` in a way; without what is hidden, the client may see everything."""
    gateway: dict[str, Any] = {"meta_tools": META_TOOLS, "tools_exposure": "hybrid", "style": style}
    given: dict[str, Any] = {"sets": {"part": SPELLINGS[spelling]}, "workflows": {"fine": FINE}, "rules": RULES}
    if hides:
        given["workflows"]["leaky"] = LEAKY
    match way:
        case "key":
            given["clients"] = {"ada": {"key": "${env:ADA}", "sets": ["part"]}}
        case "role":
            given |= {"roles": {"some": {"sets": ["part"]}}}
            given["clients"] = {"ada": {"key": "${env:ADA}", "roles": ["some"]}}
        case "unnamed":
            part = SPELLINGS[spelling]
            given["clients"] = {"ada": {"key": "${env:ADA}", "deny": part.get("exclude", [])}}
            given["clients"]["ada"] |= {"allow": part["include"]} if "include" in part else {}
        case "all":
            gateway["sets"] = ["part"]
        case "name":
            gateway["sets_by_client_name"] = {"RA*": ["part"]}
    return {**given, "gateway": gateway}


@asynccontextmanager
async def over_http(folder: Path, era: str, way: str, *, hides: bool, **given: Any) -> AsyncIterator[tuple[Ask, Any]]:
    upstreams = servers(hides=hides)
    key = KEY if way in ("key", "role", "unnamed") else None
    async with serving(folder, upstreams, **given) as served:
        await served.refresh(30)
        await served.gateway.wait_for_search(60)
        if era == "2026":

            async def ask(method: str, params: Mapping[str, Any]) -> Any:
                meta = {"io.modelcontextprotocol/clientCapabilities": SHOWS_APPS}
                return await served.message(method, {**params, "_meta": meta}, key=key)

            yield ask, await ask("server/discover", {})
            return
        session = await anyio.to_thread.run_sync(lambda: HandshakeSession(served.url, key=key, capabilities=SHOWS_APPS))

        async def ask_session(method: str, params: Mapping[str, Any]) -> Any:
            answer = await anyio.to_thread.run_sync(lambda: decoded(session.send(method, params)))
            return {name: each for name, each in answer.items() if name != "id"}

        yield ask_session, session.initialized
        await anyio.to_thread.run_sync(session.__exit__)


@asynccontextmanager
async def over_stdio(folder: Path, era: str, way: str, *, hides: bool, **given: Any) -> AsyncIterator[tuple[Ask, Any]]:
    upstreams = servers(hides=hides)
    work = folder / "work"
    work.mkdir()
    if way == "folder":
        (work / ".pml.yaml").write_text("gateway: {sets: [part]}")
    options: dict[str, Any] = {"set": "part"} if way == "entry" else {}
    environ = {"PML_SET": "part"} if way == "variable" else {}
    async with (
        open_machine(folder, upstreams, **given) as machine,
        machine.attached("raw", introduced=False, folder=work, environ=environ, **options) as client,
    ):
        await client.notice("attached")
        for gateway in machine.profiles.gateways:
            await gateway.refresh(30)
            await gateway.wait_for_search(60)
        about = {**META, "io.modelcontextprotocol/clientCapabilities": SHOWS_APPS}

        async def ask(method: str, params: Mapping[str, Any]) -> Any:
            answer = await client.request(method, {**params, **({"_meta": about} if era == "2026" else {})})
            return {name: each for name, each in answer.items() if name != "id"}

        yield ask, await ask("server/discover", {}) if era == "2026" else await client.introduce(SHOWS_APPS, "raw")


SERVER = """
import sys
sys.path.insert(0, {root!r})
import anyio
from tests.policy import test_absence
anyio.run(test_absence.servers(hides={hides})[{name!r}].serve_stdio)
"""


@asynccontextmanager
async def over_process(
    folder: Path, era: str, way: str, *, hides: bool, **given: Any
) -> AsyncIterator[tuple[Ask, Any]]:
    """A real `pml serve`, of its own or of the machine, in front of real servers."""
    root, home = str(Path(__file__).parents[2]), folder / "home"
    started = {
        name: {"command": sys.executable, "args": ["-c", SERVER.format(root=root, hides=hides, name=name)]}
        for name in servers(hides=hides)
    }
    write_settings(home, {**given, "servers": started, "search": {"ranking": "lexical"}})
    # From then on, a gateway of this home knows what its servers list.
    assert run_pml(home, "tools").returncode == 0
    command = [*SERVE, "--set", "part"] if way == "entry" else serve_alone()
    spoken = Era.STATELESS if era == "2026" else Era.HANDSHAKE
    try:
        async with open_stdio_client(command, spoken, environment(home)) as client:

            async def ask(method: str, params: Mapping[str, Any]) -> Any:
                try:
                    return await client.request(method, params)
                except AnswerError as error:
                    return str(error)

            for _ in range(100):
                called = await ask("tools/call", {"name": "up__look", "arguments": {}})
                if not called.get("isError"):
                    break
                await anyio.sleep(0.1)
            yield ask, await ask("server/discover", {}) if era == "2026" else {}
    finally:
        if way == "entry":
            end_gateway(home)


OVER = {"http": over_http, "stdio": over_stdio, "process": over_process}
WAYS = [
    *(("http", way) for way in ("key", "role", "unnamed", "all", "name")),
    *(("stdio", way) for way in ("entry", "variable", "folder", "all", "name")),
    *(("process", way) for way in ("entry", "all")),
]


def cases() -> Iterator[Any]:
    """Each way once, with the spellings and the eras in turns: a case takes half a minute."""
    for at, (transport, way) in enumerate(WAYS):
        # A client's own allow and deny have no effects.
        spellings = [each for each in SPELLINGS if way != "unnamed" or each != "effects"]
        spelling, era = spellings[at % len(spellings)], ("handshake", "2026")[at % 2]
        mark = pytest.mark.slow if at in (0, 5) else pytest.mark.heavy
        yield pytest.param(transport, way, spelling, era, marks=mark)


@pytest.mark.timeout(600)  # Four hundred requests to each of two gateways.
@pytest.mark.parametrize(("transport", "way", "spelling", "era"), list(cases()))
async def test_what_a_client_is_not_given_does_not_exist_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, way: str, spelling: str, era: str
) -> None:
    monkeypatch.setenv("ADA", KEY)
    await compare(tmp_path, transport, way, spelling, era)


async def test_one_name_is_no_different_at_any_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA", KEY)
    await compare(tmp_path, "stdio", "entry", "include", "2026", spellings=1)


async def compare(
    tmp_path: Path, transport: str, way: str, spelling: str, era: str, spellings: int | None = None
) -> None:
    """Ask both gateways."""
    found = []
    for hides in (True, False):
        folder = tmp_path / str(hides)
        folder.mkdir()
        given = sections(way, spelling, hides=hides, style="namespaces" if era == "2026" else "tools")
        async with OVER[transport](folder, era, way, hides=hides, **given) as (ask, begins):
            found.append(await answers(ask, begins, spellings))
    hidden, absent = found
    differing = [f"{asked}\n{hidden[asked]}\n{absent[asked]}" for asked in hidden if hidden[asked] != absent[asked]]
    assert not differing, "\n\n".join(differing[:5])
