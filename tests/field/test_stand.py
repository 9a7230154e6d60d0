"""The stand itself: a sound server is served on every way, in both eras."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.field.canned import Canned, entries
from tests.field.stand import Era, FieldClient, Way, gateway_client

pytestmark = pytest.mark.slow

SERVERS = {
    "stdio": Canned(tools=[{"name": "sail"}]),
    "http": Canned(tools=[{"name": "sail"}], transport="http"),
}


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    folder, home = tmp_path_factory.mktemp("servers"), tmp_path_factory.mktemp("home")
    with (
        entries(SERVERS, folder) as servers,
        gateway_client(way, era, home, {"servers": servers}) as client,
    ):
        yield client


@pytest.mark.parametrize("server", SERVERS)
def test_a_sound_server_is_listed_and_called(client: FieldClient, server: str) -> None:
    assert f"{server}__sail" in client.tools(f"{server}__sail")
    assert client.call(f"{server}__sail", where="north")["content"] == [{"type": "text", "text": '{"where": "north"}'}]
