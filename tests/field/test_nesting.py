"""Definitions and results that are nested deeply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.field.canned import Canned, Transport, entries
from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.support.command_line import run_here
from tests.support.process import write_settings

pytestmark = [pytest.mark.field("B11"), pytest.mark.slow]

LEVELS = (100, 190, 197, 199, 250, 1_000, 10_000)


def nested(levels: int) -> str:
    """Build JSON of an object with this many levels."""
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def listing(field: str, levels: int) -> bytes:
    """Build a list of two tools, of which the first has a field with this many levels."""
    schema = "" if field == "inputSchema" else '"inputSchema":{"type":"object"},'
    deep = f'{{"name":"deep",{schema}"{field}":{{"type":"object","properties":{nested(levels)}}}}}'
    good = '{"name":"good","description":"[\\"{","inputSchema":{"type":"object"}}'
    return f'{{"jsonrpc":"2.0","id":%ID%,"result":{{"tools":[{deep},{good}]}}}}'.encode()


SERVERS = {
    f"{field.lower().strip('_')}{levels}": Canned(
        tools=[{"name": "good", "inputSchema": {"type": "object"}}],
        answers={"tools/list": listing(field, levels)},
    )
    for levels in LEVELS
    for field in ("inputSchema", "outputSchema", "_meta", "annotations")
    if field == "inputSchema" or levels in (250, 10_000)
}


def prompt_of(levels: int, transport: Transport) -> str:
    """Name the good prompt of a server so that no other server's is called alike: the first listed keeps the name."""
    return f"good_{transport}_{levels}"


def offers(levels: int, transport: Transport = "stdio") -> Canned:
    """Build a server that lists a deep and a good definition of each kind; names stand behind what is deep."""
    entries = {
        "tools/list": ("tools", '"inputSchema":{"type":"object"}', "name", "good", "deep \\u00e4 {"),
        "prompts/list": ("prompts", '"description":"x"', "name", prompt_of(levels, transport), "deep"),
        "resources/list": ("resources", '"name":"n"', "uri", "x://good", "x://deep"),
        "resources/templates/list": ("resourceTemplates", '"name":"n"', "uriTemplate", "x://good/{a}", "x://deep/{a}"),
    }
    answers = {
        method: (
            f'{{"jsonrpc":"2.0","id":%ID%,"result":{{"{key}":[{{"_meta":{nested(levels)},"title":"{named_by}",{rest},'
            f'"{named_by}" : "{deep}"}},{{{rest},"{named_by}":"{good}"}}]}}}}'
        ).encode()
        for method, (key, rest, named_by, good, deep) in entries.items()
    }
    return Canned(answers=answers, capabilities={"tools": {}, "prompts": {}, "resources": {}}, transport=transport)


OFFERING: dict[str, tuple[int, Transport]] = {
    **{f"offers{levels}": (levels, "stdio") for levels in (250, 1_000, 10_000)},
    "web": (1_000, "http"),
}
OFFERS = {server: offers(*made) for server, made in OFFERING.items()}

RESULTS = Canned(
    tools=[{"name": f"say{levels}", "inputSchema": {"type": "object"}} for levels in LEVELS],
    answers={
        f"tools/call:say{levels}": (
            '{"jsonrpc":"2.0","id":%ID%,"result":{"content":[],"structuredContent":' + nested(levels) + "}}"
        ).encode()
        for levels in LEVELS
    },
)


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    homes = tmp_path_factory.mktemp("homes")
    with (
        entries({**SERVERS, **OFFERS, "results": RESULTS}, tmp_path_factory.mktemp("servers")) as servers,
        gateway_client(way, era, homes, {"servers": servers, "naming": {"prefix": "always"}}) as client,
    ):
        yield client


@pytest.mark.parametrize("server", SERVERS)
def test_a_deeply_nested_definition_costs_only_its_own_tool(client: FieldClient, server: str) -> None:
    assert f"{server}__good" in client.tools(f"{server}__good")


@pytest.mark.parametrize("server", OFFERS)
def test_a_deeply_nested_prompt_or_resource_costs_only_itself(client: FieldClient, server: str) -> None:
    assert f"{server}__good" in client.tools(f"{server}__good")
    prompts = client.prompts(prompt_of(*OFFERING[server]))
    assert not [name for name in prompts if "deep" in name]
    resources = json.dumps(client.result("resources/list"))
    templates = json.dumps(client.result("resources/templates/list"))
    assert "x://good" in resources
    assert "x://deep" not in resources
    assert "x://good/" in templates
    assert "x://deep" not in templates


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_doctor_names_what_is_left_out(tmp_path: Path, transport: Transport) -> None:
    with entries({"up": offers(1_000, transport)}, tmp_path) as servers:
        write_settings(tmp_path / "home", {"servers": servers})
        done = run_here(tmp_path / "home", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["subject"] == "up"]
    assert found["severity"] == "warning"
    assert [line.partition(" is nested deeper than 200 levels, and left out")[0] for line in found["details"]] == [
        "tools/list: 'deep \\xe4 {'",
        "prompts/list: 'deep'",
        "resources/list: 'x://deep'",
        "resources/templates/list: 'x://deep/{a}'",
    ]


@pytest.mark.parametrize("levels", LEVELS)
def test_a_deeply_nested_result_is_passed_on_or_refused_in_words(client: FieldClient, levels: int) -> None:
    client.tools("results__say100")
    result = client.call(f"results__say{levels}")
    if levels <= 190:
        assert json.dumps(result["structuredContent"], separators=(",", ":")) == nested(levels)
    elif "structuredContent" not in result:
        assert "nested" in json.dumps(result["content"])
    assert client.call("results__say100")["structuredContent"]
