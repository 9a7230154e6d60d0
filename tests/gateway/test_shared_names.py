"""Names of tools and prompts at replicas: the same at all, in whatever order servers answer and list."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.catalog.manifest import Manifest, ManifestFile
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.listings import Listings
from pml_gateway.mcp.listing import Listed, Offers
from pml_gateway.storage.sealing import Sealing
from pml_gateway.storage.shared_documents import SharedDocuments
from pml_gateway.storage.single_flight_cache import SingleFlightCache
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.trust_gate import TrustGate
from tests.storage.test_redis import KEY

SERVERS = ("notes", "files", "mail")


def tools(*names: str) -> tuple[dict[str, Any], ...]:
    return tuple({"name": name, "description": name, "inputSchema": {"type": "object"}} for name in names)


class Replica:
    """A replica with an empty folder, whose servers list when the test says so."""

    def __init__(self, url: str, folder: Path, prefix: str = "on_collision", **naming: Any) -> None:
        self.documents = SharedDocuments(url, Sealing(KEY))
        servers = {name: {"command": name} for name in SERVERS}
        self.settings = Settings.model_validate({"servers": servers, "naming": {"prefix": prefix, **naming}})
        gate = TrustGate(PinsFile(folder / "trust", str(folder), documents=self.documents))
        manifests = partial(ManifestFile, folder / "manifest", str(folder))
        nothing = SingleFlightCache[Manifest](0), SingleFlightCache[Catalog](0)
        self.listings = Listings(manifests, self.settings.naming, gate, *nothing, self.documents)
        self.catalog = self.listings.catalog(self.settings, self.listings.first_names, frozenset())

    def lists(self, server: str, *names: str, prompts: tuple[str, ...] = ()) -> None:
        offers = Offers(prompts=tuple({"name": name} for name in prompts))
        listed = Listed(tools(*names), 1.0, "2025-11-25", "s", "1", 0.1, offers)
        self.listings.take(server, self.settings.servers[server], listed)
        self.build()

    def build(self) -> None:
        self.catalog = self.listings.catalog(self.settings, self.catalog, frozenset())

    @property
    def names(self) -> dict[str, tuple[str, str]]:
        found = {tool.qualified_name: (tool.upstream_id, tool.name) for tool in self.catalog.tools}
        return found | {f"prompt {each.public}": (each.upstream_id, each.name) for each in self.catalog.offers.offers}


pytestmark = pytest.mark.usefixtures("empty_redis")


@pytest.mark.parametrize("prefix", ["always", "on_collision", "never"])
def test_names_are_the_same_in_whatever_order_servers_answer(redis_url: str, tmp_path: Path, prefix: str) -> None:
    offered = {"notes": ("add", "a b", "a_b"), "files": ("add", "a_b", "notes__add"), "mail": ("add", "x" * 60)}
    replicas = [Replica(redis_url, tmp_path / str(at), prefix) for at in range(6)]
    for place in range(3):
        for replica, order in zip(replicas, permutations(SERVERS), strict=True):
            server = order[place]
            # Nor does it matter how a server sorts its list.
            names = offered[server] if order[0] == "notes" else offered[server][::-1]
            replica.lists(server, *names, prompts=("hello",))
    for replica in replicas:
        replica.build()
        assert replica.names == replicas[0].names
    assert len(replicas[0].names) == 11


def test_a_name_stays_with_its_tool_where_another_server_answers_first(redis_url: str, tmp_path: Path) -> None:
    one, two = Replica(redis_url, tmp_path / "one"), Replica(redis_url, tmp_path / "two")
    one.lists("notes", "add")
    two.lists("files", "add")
    assert one.names == {"add": ("notes", "add")}
    assert two.names == {"files__add": ("files", "add")}, "it is taken, by a server that has not answered here yet"


def test_names_that_differed_in_an_outage_are_those_of_all_after_it(redis_url: str, tmp_path: Path) -> None:
    one, alone = Replica(redis_url, tmp_path / "one"), Replica("redis://127.0.0.1:1", tmp_path / "alone")
    one.lists("notes", "add")
    alone.lists("files", "add")
    assert alone.names == {"add": ("files", "add")}
    back = Replica(redis_url, tmp_path / "alone")
    back.catalog = alone.catalog
    back.lists("files", "add")
    assert back.names == {"files__add": ("files", "add")}


def test_other_rules_for_names_take_effect_although_all_agreed_on_names_of_before(
    redis_url: str, tmp_path: Path
) -> None:
    long = "x" * 60
    one = Replica(redis_url, tmp_path / "one", max_length=64)
    one.lists("notes", long)
    assert set(one.names) == {long}
    shorter = [Replica(redis_url, tmp_path / name, max_length=40) for name in ("two", "three")]
    for replica in shorter:
        replica.lists("notes", long)
    assert shorter[0].names == shorter[1].names
    assert max(map(len, shorter[0].names)) == 40


def test_a_server_that_is_configured_no_longer_gives_its_names_away(redis_url: str, tmp_path: Path) -> None:
    one = Replica(redis_url, tmp_path / "one")
    one.lists("notes", "add")
    two = Replica(redis_url, tmp_path / "two")
    servers = {name: each for name, each in two.settings.servers.items() if name != "notes"}
    two.settings = two.settings.model_copy(update={"servers": servers})
    two.build()
    two.lists("files", "add")
    assert two.names == {"add": ("files", "add")}
