from __future__ import annotations

import pytest

from tests.support.approving import KEYS, REDIS, STORAGE


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the clients in variables."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, keys: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where approvals lie: in memory, or in an empty Redis server."""
    where: str = request.param
    if where == "redis":
        request.getfixturevalue("empty_redis")
        monkeypatch.setenv(REDIS, request.getfixturevalue("redis_url"))
        monkeypatch.setenv(STORAGE, "a random text of all gateways, long enough")
    return where
