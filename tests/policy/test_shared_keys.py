"""Keys that replicas share: made and revoked at any of them, whatever their folders and configurations are called."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis import Redis

from pml_gateway.errors import SharedStateError, UsageError
from pml_gateway.policy.keys import KeyStore
from pml_gateway.storage.redis import PREFIX
from pml_gateway.storage.sealing import Sealing
from pml_gateway.storage.shared_documents import SharedDocuments
from tests.storage.test_redis import KEY
from tests.support.memory import paths_in


class Machine:
    """A replica's folder with its keys."""

    def __init__(self, url: str, folder: Path) -> None:
        self.documents = SharedDocuments(url, Sealing(KEY))
        self.paths, self.identity = paths_in(folder), str(folder / "config.yaml")
        self.keys = KeyStore(self.paths, self.identity, documents=self.documents)
        self.tokens = KeyStore(self.paths, self.identity, of_owner=True, documents=self.documents)
        self.alone = KeyStore(self.paths, self.identity)
        self.keys_in_redis = f"{PREFIX}:documents:{self.documents.space}:keys"

    def known(self, *, fills: bool = False) -> set[str]:
        self.documents.pull(fills=fills)
        return set(self.keys.in_force(datetime.now(UTC)))


@pytest.fixture
def machines(empty_redis: Redis, redis_url: str, tmp_path: Path) -> list[Machine]:
    return [Machine(redis_url, tmp_path / name) for name in ("one", "two", "three")]


def test_a_key_of_one_machine_is_known_at_the_others_until_any_revokes_it(machines: list[Machine]) -> None:
    one, two, three = machines
    made, token = one.keys.add("ci"), two.tokens.add()
    assert one.known() == two.known() == three.known() == {made.key_id}
    assert set(three.tokens.all()) == {token.key_id}
    with pytest.raises(UsageError, match="no key"):
        three.keys.revoke([token.key_id])
    three.keys.revoke([made.key_id])
    assert one.known() == two.known() == set()
    assert set(one.tokens.all()) == {token.key_id}


def test_a_machine_that_was_away_brings_no_revoked_key_back(empty_redis: Redis, machines: list[Machine]) -> None:
    one, two, away = machines
    revoked, kept = one.keys.add("ci").key_id, one.keys.add("ci").key_id
    assert away.known() == {revoked, kept}
    two.keys.revoke([revoked])
    empty_redis.flushall()
    # Nobody else is there when it comes back, and it makes changes of its own.
    added = {away.keys.add("ci").key_id for _ in range(5)}
    for each in (one, two):
        each.known(fills=True)
    assert one.known() == two.known() == away.known() == {kept, *added}


def test_keys_of_before_are_known_everywhere_and_those_of_other_configurations_stay_here(
    machines: list[Machine], tmp_path: Path
) -> None:
    one, two, _ = machines
    here, there = one.alone.add("ci").key_id, two.alone.add("ci").key_id
    foreign = KeyStore(one.paths, "another")
    other = foreign.add("ci").key_id
    one.known(fills=True)
    assert two.known() == one.known() == {here, there}
    two.keys.revoke([here])
    assert one.known() == {there}
    assert set(foreign.all()) == {other}
    assert other not in two.paths.keys_file.read_text(encoding="utf-8")
    assert set(one.alone.all()) == {there}, "also without the storage again"


def test_a_key_that_is_revoked_by_a_process_without_the_storage_stays_revoked(
    redis_url: str, machines: list[Machine], tmp_path: Path
) -> None:
    # Such as a command beside workers, which share a Redis server of their own.
    one = machines[0]
    revoked, kept = (one.keys.add("ci").key_id for _ in range(2))
    one.alone.revoke([revoked])
    added = one.alone.add("ci").key_id
    assert set(one.keys.in_force(datetime.now(UTC))) == {kept, added}
    restarted = Machine(redis_url, tmp_path / "one")
    assert restarted.known(fills=True) == {kept, added}
    assert machines[1].known() == one.known() == {kept, added}


def test_the_last_use_is_that_at_any_machine(machines: list[Machine]) -> None:
    one, two, _ = machines
    key_id = one.keys.add("ci").key_id
    two.known()
    earlier, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    one.keys.note_uses({key_id: later})
    two.keys.note_uses({key_id: earlier})
    one.documents.pull()
    assert one.keys.uses() == two.keys.uses() == {key_id: later}


def test_in_an_outage_keys_stay_in_force_and_are_not_changed(machines: list[Machine], tmp_path: Path) -> None:
    key_id = machines[0].keys.add("ci").key_id
    alone = Machine("redis://127.0.0.1:1", tmp_path / "one")
    for change in (lambda: alone.keys.add("ci"), lambda: alone.keys.revoke([key_id])):
        with pytest.raises(SharedStateError):
            change()
    assert set(alone.keys.in_force(datetime.now(UTC))) == {key_id}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_every_key_that_was_not_revoked_is_known_in_the_end_and_no_other(
    empty_redis: Redis, machines: list[Machine], seed: int
) -> None:
    chance, live, revoked = random.Random(seed), set[str](), set[str]()
    backup = b""

    def look(machine: Machine) -> None:
        # What a machine has not heard of is unknown to it, so that it can be neither revoked nor told.
        assert machine.known(fills=chance.random() < 0.5) <= live | revoked

    for _ in range(40):
        machine = chance.choice(machines)
        match chance.choice(("add", "add", "revoke", "look", "look", "flush", "backup", "restore")):
            case "add":
                live.add(machine.keys.add("ci").key_id)
            case "revoke":
                if known := sorted(set(machine.keys.in_force(datetime.now(UTC))) & live):
                    with suppress(UsageError):
                        machine.keys.revoke([known[0]])
                    live.discard(known[0])
                    revoked.add(known[0])
            case "look":
                look(machine)
            case "flush":
                empty_redis.flushall()
            case "backup":
                backup = empty_redis.dump(machine.keys_in_redis) or b""
            case "restore":
                if backup:
                    empty_redis.restore(machine.keys_in_redis, 0, backup, replace=True)
    for _ in range(3):
        for machine in machines:
            machine.known(fills=True)
    assert [machine.known() for machine in machines] == [live] * 3
