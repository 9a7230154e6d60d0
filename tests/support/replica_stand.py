"""Tests of one gateway that are made with three replicas as well, behind haproxy that sends each request to the next.

A module asks for it by `pytest.mark.usefixtures("gateways")`; `tests.support.serving` then opens what the fixture says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pml_gateway.config.settings import Settings, StorageSettings
from tests.e2e.install import InstallationError, install_balancer, install_redis
from tests.support.balancers import balanced
from tests.support.redis_server import real_redis
from tests.support.skipping import unavailable

COUNT = 3
URL, KEY = "PML_TEST_REDIS", "PML_TEST_STORAGE_KEY"


@dataclass(frozen=True, slots=True)
class ReplicaStand:
    """What replicas of a test have in common."""

    haproxy: Path
    folder: Path

    def settings(self, settings: Settings) -> Settings:
        """The settings of each of them."""
        shared = StorageSettings(url=f"${{env:{URL}}}", key=f"${{env:{KEY}}}", results=settings.storage.results)
        return settings.model_copy(update={"storage": shared})

    def homes(self, home: Path) -> list[Path]:
        """Their folders; the first is the one that the test knows."""
        return [home, *(home / f"replica-{number}" for number in range(2, COUNT + 1))]

    def balanced(self, urls: Sequence[str]) -> AbstractContextManager[str]:
        """One endpoint in front of them."""
        return balanced("haproxy", self.haproxy, urls, self.folder, is_sticky=False)


class _Current:
    stand: ReplicaStand | None = None


def current_stand() -> ReplicaStand | None:
    """The stand that the running test asked for; None for one gateway alone."""
    return _Current.stand


@pytest.fixture(scope="session")
def redis_of_replicas() -> Iterator[str]:
    """The URL of a real Redis server, which each test with replicas empties first."""
    try:
        program = install_redis()
    except InstallationError as exc:
        unavailable(exc)
    with real_redis(program) as server:
        yield server.url


@pytest.fixture(params=["alone", pytest.param("replicas", marks=[pytest.mark.slow, pytest.mark.e2e])])
def gateways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have the test made with one gateway, and with three replicas in the slow stage."""
    if request.param == "alone":
        yield
        return
    if request.node.callspec.params.get("store") == "redis":
        pytest.skip("approvals of replicas are in Redis in any case")
    if (left_out := request.node.get_closest_marker("one_gateway")) is not None:
        pytest.skip(left_out.args[0])
    try:
        haproxy = install_balancer("haproxy")
    except InstallationError as exc:
        unavailable(exc)
    url = request.getfixturevalue("redis_of_replicas")
    with pytest.importorskip("redis").Redis.from_url(url) as client:
        client.flushall()
    monkeypatch.setenv(URL, url)
    monkeypatch.setenv(KEY, "a random text of three replicas, long enough")
    monkeypatch.setattr(_Current, "stand", ReplicaStand(haproxy, tmp_path_factory.mktemp("balancer")))
    yield
