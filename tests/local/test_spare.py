"""The second process of a gateway: goes on in its place where it is killed, and only there."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.errors import GatewayError
from pml_gateway.local.commands import ask
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.entry import gateway_command
from pml_gateway.local.spare import SHORT_LIFE_SECONDS, written_will
from pml_gateway.local.starting import reach
from pml_gateway.types import JsonObject
from tests.support.process import is_alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks go on for certain on Linux alone")

PATIENCE = 30.0
PROGRAM = """
import json, os, sys, time
from pml_gateway.local import spare as module
from pml_gateway.local.spare import Spare, Will, fork_spare

module.SHORT_LIFE_SECONDS = float(sys.argv[1])
held = os.open(os.devnull, os.O_RDONLY)
module.PREPARE_SECONDS = float(sys.argv[2])
spare = fork_spare(Will("client"), [held], lambda: print(json.dumps("prepared"), flush=True))
if isinstance(spare, Will):
    try:
        os.fstat(held)
    except OSError:
        print(json.dumps(["goes on", os.getpid(), spare.started_by, spare.is_used, spare.http]), flush=True)
    os._exit(0)
print(json.dumps(["gateway", os.getpid(), spare.pid]), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    spare.dismiss() if said == "dismiss" else spare.tell(Will(**said))
    print(json.dumps(["told", spare.pid]), flush=True)
"""


@contextmanager
def gateway(short_life: float = 0.0, prepares_after: float = 60.0) -> Iterator[Any]:
    """A process with a spare, that is told what it says on its stdin; all that both print is read here."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(short_life), str(prepares_after)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def told(process: Any, said: object) -> Any:
    process.stdin.write(json.dumps(said) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_a_spare_goes_on_with_what_it_was_told_last_and_holds_nothing_of_the_gateway() -> None:
    environ = {"LARGE": "x" * 300_000}
    with gateway() as process:
        _, pid, spare = json.loads(process.stdout.readline())
        told(process, {"started_by": "client", "is_used": True})
        told(process, {"started_by": "up", "http": {"port": 8765, "owner": {"environ": environ}}})
        os.kill(pid, signal.SIGKILL)
        said = json.loads(process.stdout.readline())
    assert said == ["goes on", spare, "up", False, {"port": 8765, "owner": {"environ": environ}}]


def test_a_spare_prepares_while_nothing_is_said_and_goes_on_all_the_same() -> None:
    with gateway(prepares_after=0.01) as process:
        said = [json.loads(process.stdout.readline()) for _ in range(2)]
        _, pid, spare = next(each for each in said if each != "prepared")
        process.stdin.write(json.dumps({"started_by": "up"}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == ["told", spare]
        os.kill(pid, signal.SIGKILL)
        assert json.loads(process.stdout.readline()) == ["goes on", spare, "up", False, None]


@pytest.mark.parametrize(
    ("is_used", "short_life", "why"),
    [(False, 0.0, "nobody would miss it"), (True, 60.0, "what it starts with may be what it is killed by")],
)
def test_a_spare_ends_where_nobody_wants_it_to_go_on(is_used: bool, short_life: float, why: str) -> None:
    with gateway(short_life) as process:
        _, pid, _ = json.loads(process.stdout.readline())
        told(process, {"started_by": "client", "is_used": is_used})
        os.kill(pid, signal.SIGKILL)
        assert process.stdout.read() == "", why


def test_a_spare_ends_with_a_gateway_that_ends_by_itself() -> None:
    with gateway() as process:
        _, _, spare = json.loads(process.stdout.readline())
        told(process, {"started_by": "client", "is_used": True})
        assert told(process, "dismiss") == ["told", None]
        assert not is_alive(spare)
        process.stdin.close()
        assert process.stdout.read() == ""


def test_a_spare_that_was_killed_is_done_without() -> None:
    with gateway() as process:
        _, _, spare = json.loads(process.stdout.readline())
        os.kill(spare, signal.SIGKILL)
        used = itertools.cycle((True, False))

        def is_given_up() -> bool:
            return bool(told(process, {"started_by": "client", "is_used": next(used)}) == ["told", None])

        # The pipe is broken once the system has ended it.
        wait_for(is_given_up, "the spare is given up")
        process.stdin.close()
        assert process.stdout.read() == ""


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"process": 1, "started_by": "up", "http": 5}', '{"process": 1, "started_by": "client"}'],
)
def test_what_is_written_in_the_place_of_a_will_and_is_none_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "will").write_text(content)
    assert written_will(str(tmp_path / "will")) is None


def names(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """A gateway that was started by a client, without servers that run."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"servers": {"none": {"command": "no-such-command-of-pml"}}}), encoding="utf-8")
    endpoint = Endpoint.of(tmp_path, config)
    reach(endpoint, gateway_command(str(tmp_path), str(config)), time.monotonic() + PATIENCE).close()
    yield endpoint
    ask(endpoint, "down", PATIENCE)


def status(endpoint: Endpoint) -> JsonObject:
    answer = ask(endpoint, "status", PATIENCE)
    assert answer is not None
    return answer


def kill(endpoint: Endpoint, pid: int) -> None:
    wait_for(lambda: status(endpoint)["age_seconds"] > SHORT_LIFE_SECONDS, "it has lived long enough to be replaced")
    os.kill(pid, signal.SIGKILL)


def is_replaced(endpoint: Endpoint, before: int) -> bool:
    with suppress(GatewayError):
        answer = ask(endpoint, "status", PATIENCE)
        return answer is not None and answer["pid"] != before
    return False


@pytest.mark.slow
def test_a_gateway_that_is_killed_goes_on_as_it_was_over_http_as_well(endpoint: Endpoint, tmp_path: Path) -> None:
    first = status(endpoint)
    assert ("local.server" in names(first["pid"]), "local.spare" in names(first["spare"])) == (True, True)
    environ = {"PML_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    owner = {"attach": 1, "version": "1", "secret": "s" * 40, "pid": 1, "folder": str(tmp_path), "environ": environ}
    listening = ask(endpoint, "http", PATIENCE, {"owner": owner, "host": "127.0.0.1", "port": 0})
    assert listening is not None
    kill(endpoint, first["pid"])
    wait_for(lambda: is_replaced(endpoint, first["pid"]), "another gateway answers")
    wait_for(lambda: status(endpoint)["url"] == listening["url"], "it listens where the first one did")
    second = status(endpoint)
    assert (second["pid"], second["started_by"]) == (first["spare"], "up")
    assert "local.server" in names(second["pid"])
    assert second["spare"] not in (None, first["spare"])
    assert "in the place of process" in Path(endpoint.log).read_text(encoding="utf-8")
    ask(endpoint, "down", PATIENCE)
    wait_for(lambda: not any(map(is_alive, (second["pid"], second["spare"]))), "both have ended")


@pytest.mark.slow
def test_a_gateway_without_clients_that_is_killed_leaves_no_process(endpoint: Endpoint) -> None:
    first = status(endpoint)
    kill(endpoint, first["pid"])
    wait_for(lambda: not any(map(is_alive, (first["pid"], first["spare"]))), "both have ended")
    assert ask(endpoint, "status", PATIENCE) is None


def test_a_spare_that_was_killed_is_no_spare_any_more() -> None:
    with gateway() as process:
        _, _, spare = json.loads(process.stdout.readline())
        will = {"started_by": "client", "is_used": True}
        assert told(process, will) == ["told", spare]
        os.kill(spare, signal.SIGKILL)
        # Nothing is said to it that it does not know.
        wait_for(lambda: told(process, will) == ["told", None], "it is missed")
        assert not is_alive(spare)
        process.stdin.close()
