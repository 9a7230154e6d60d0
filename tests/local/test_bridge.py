"""A client keeps its session across gateways that end at any point, and is told the truth of what was in flight."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.local.memory import MAX_LOSSES
from tests.local.bridged import Bridged, bridged

pytestmark = pytest.mark.slow


ACKNOWLEDGED, CHANGED = "notifications/subscriptions/acknowledged", "notifications/tools/list_changed"


def kill_gateway(client: Bridged) -> None:
    os.kill(client.noted("starts")[-1]["pid"], signal.SIGKILL)


def fresh(path: Path, name: str = "other") -> Path:
    """Another home."""
    (path / name).mkdir()
    return path / name


def error_of(answer: Any) -> Any:
    assert answer["result"]["isError"]
    assert json.loads(answer["result"]["content"][0]["text"]) == answer["result"]["structuredContent"]
    return answer["result"]["structuredContent"]["error"]


def test_messages_pass_and_the_bridge_ends_when_its_client_leaves(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call("pml-bridge-1-1", "echo")
        assert client.next()["id"] == "pml-bridge-1-1"
        client.call(1, "echo", text="ä\ud83d", price=1.5)
        assert client.next()["result"] == {"by": 1, "echo": {"text": "ä\ud83d", "price": 1.5}}
        assert client.leave() == 0
        assert client.next() is None


def test_a_pipe_of_another_user_is_written_to(tmp_path: Path) -> None:
    program = """
import os
from pml_gateway.local.bridge import writer

reading, writing = os.pipe()
os.fchmod(writing, 0o400)
if os.geteuid() == 0:
    os.setuid(65534)
write, _ = writer(writing)
assert write(memoryview(b"x")) == 1
assert os.read(reading, 2) == b"x"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_client_that_left_many_files_open_is_served(tmp_path: Path) -> None:
    with bridged(tmp_path, "many_files") as client:
        client.handshake()
        client.call(1, "echo")
        assert client.next()["result"]["by"] == 1
        assert client.leave() == 0


def test_a_client_for_whom_one_gateway_made_room_takes_the_next_as_it_is(tmp_path: Path) -> None:
    with bridged(tmp_path, "older") as client:
        client.handshake()
        client.call(1, "echo")
        assert client.next()["result"]["by"] == 2
        kill_gateway(client)
        client.call(2, "echo")
        assert client.next()["result"]["by"] == 3
        assert [each["replaced"] for each in client.noted("hellos")] == [False, True, True]
        told = (tmp_path / "bridge.stderr").read_text()
        assert ["is older: 2" in told, "is older: 3" in told] == [True, True]


def test_answers_in_flight_arrive_after_the_client_has_closed_its_end(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        for number in range(50):
            client.call(number, "echo")
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert [client.next()["id"] for _ in range(50)] == list(range(50))
        assert client.process.wait(30) == 0


def test_a_request_that_was_not_sent_is_sent_again(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "before_sent", a=1)
        assert client.next()["result"] == {"by": 2, "echo": {"a": 1}}
        assert [each["state"] for each in client.noted("hellos")] == [None, {"of": 1}]


def test_a_request_that_was_sent_is_repeated_only_if_it_may_be(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "after_sent_repeatable")
        assert client.next()["result"]["by"] == 2
    with bridged(fresh(tmp_path)) as client:
        client.handshake()
        client.call(1, "after_sent")
        error = error_of(client.next())
        assert error["details"] == {"executed": "unknown"}
        assert not error["retryable"]
        assert "references" in error["hint"]
        assert "a part of it" in error["message"]
        client.call(2, "echo")
        assert client.next()["result"]["by"] == 2
        assert "after_sent" not in str(client.received(2))


def test_a_call_whose_answer_had_begun_is_said_to_be_done(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "in_the_answer")
        assert error_of(client.next())["details"] == {"executed": "yes"}


def test_a_session_is_restored_with_what_was_granted_to_it(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.send(id=1, method="logging/setLevel", params={"level": "debug"})
        for number, (method, uri) in enumerate((("subscribe", "a:b"), ("subscribe", "a:c"), ("unsubscribe", "a:b"))):
            client.send(id=2 + number, method=f"resources/{method}", params={"uri": uri})
        for _ in range(4):
            client.next()
        kill_gateway(client)
        client.call(9, "echo")
        assert client.next()["id"] == 9
        restored = client.received(2)
        assert [each["method"] for each in restored] == [
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/call",
        ]
        assert restored[0]["params"]["clientInfo"]["name"] == "test"
        assert restored[3]["params"] == {"uri": "a:c"}
        assert client.leave() == 0
        assert client.next() is None


def test_an_open_question_is_withdrawn_and_its_late_answer_reaches_nobody(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "in_a_question")
        first = client.next()
        assert first["params"]["message"] == "by 1"
        withdrawn = client.next()
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == first["id"]
        second = client.next()
        assert second["params"]["message"] == "by 2"
        assert second["id"] != first["id"]
        client.send(id=first["id"], result={"late": True})
        client.send(id=second["id"], result={"late": False})
        assert client.next() == {"jsonrpc": "2.0", "id": 1, "result": {"said": {"late": False}}}


def test_what_the_client_has_cancelled_is_neither_repeated_nor_answered(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "never")
        client.send(method="notifications/cancelled", params={"requestId": 1})
        client.call(2, "before_sent")
        assert client.next()["id"] == 2
        assert [each.get("id") for each in client.received(2)][2:] == [2]


def test_a_stateless_client_gets_its_requests_and_streams_again_and_nothing_else(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.send(id="l", method="subscriptions/listen", params={"notifications": {}})
        assert [client.next()["method"] for _ in range(2)] == [ACKNOWLEDGED, CHANGED]
        client.call(1, "after_sent")
        answer = client.next()
        assert error_of(answer)["details"] == {"executed": "unknown"}
        assert answer["result"]["resultType"] == "complete"
        client.call(2, "echo")
        # The stream goes on, and is not acknowledged twice.
        assert client.next()["method"] == CHANGED
        assert client.next()["result"]["by"] == 2
        assert [each["id"] for each in client.received(2)] == ["l", 2]
        # Another one of the same name is refused, and one of another name is acknowledged.
        client.send(id="l", method="subscriptions/listen", params={"notifications": {}})
        assert client.next()["error"]["code"] == -32600
        client.send(id="m", method="subscriptions/listen", params={"notifications": {}})
        assert [client.next()["method"] for _ in range(2)] == [ACKNOWLEDGED, CHANGED]
        assert client.leave() == 0


def test_a_call_that_goes_on_after_a_question_is_never_given_to_another_gateway(tmp_path: Path) -> None:
    for name in ("before_sent", "echo"):
        with bridged(fresh(tmp_path, name)) as client:
            client.call(1, "asks_later")
            state = client.next()["result"]["requestState"]
            if name == "echo":
                # The answers come when the gateway that asked is gone.
                kill_gateway(client)
            client.send(id=2, method="tools/call", params={"name": name, "requestState": state})
            answer = client.next()
            assert error_of(answer)["details"] == {"executed": "unknown"}, name
            assert "lost with it" in error_of(answer)["hint"]
            client.call(3, "echo")
            assert client.next()["result"]["by"] == 2


def test_what_a_gateway_does_not_take_for_a_request_is_not_asked_for_again(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        for line in (
            b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
            b'{"id":7,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":8,"method":"ping","params":[1]}',
        ):
            client.write(line + b"\n")
        assert [client.next()["id"] for _ in range(4)] == [None, None, 7, 8]
        assert client.leave() == 0
        assert client.next() is None
        assert len(client.noted("starts")) == 1


@pytest.mark.parametrize("reason", ["restart", "replaced"])
def test_a_gateway_that_is_replaced_is_followed_at_once(tmp_path: Path, reason: str) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "leaves", **{"as": reason})
        assert client.next()["result"]["by"] == 1
        while len(client.received(2)) < 2:
            os.sched_yield()
        assert client.process.poll() is None


def test_after_a_gateway_was_ended_the_next_message_starts_another(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "leaves", **{"as": "down"})
        assert client.next()["result"]["by"] == 1
        while "ends (down)" not in (tmp_path / "bridge.stderr").read_text():
            os.sched_yield()
        assert len(client.noted("starts")) == 1
        client.call(2, "echo")
        assert client.next()["result"]["by"] == 2


def test_a_request_that_ends_every_gateway_is_answered_after_a_few(tmp_path: Path) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "always_fatal")
        assert error_of(client.next())["details"] == {"executed": "no"}
        client.call(2, "echo")
        assert client.next()["id"] == 2
        assert len(client.noted("starts")) == MAX_LOSSES + 1


@pytest.mark.parametrize(("behaviour", "words"), [("fails_later", "no such model"), ("refuses_later", "broken since")])
def test_without_another_gateway_everything_is_answered_with_the_reason(
    tmp_path: Path, behaviour: str, words: str
) -> None:
    with bridged(tmp_path, behaviour) as client:
        client.handshake()
        client.send(id=1, method="tools/list")
        client.next()
        client.call(2, "before_sent")
        error = error_of(client.next())
        assert words in error["message"]
        assert error["details"] == {"executed": "no"}
        client.send(id=3, method="tools/list")
        answer = client.next()["error"]
        assert words in answer["message"]
        assert answer["data"]["details"] == {"executed": "no"}
        assert client.leave() == 0


@pytest.mark.parametrize(
    ("behaviour", "words", "code"),
    [
        ("fails", "no such model", 78),
        ("refuses", "no such mode", 78),
        ("refuses_without_hint", "no room", 1),
        ("is_killed", "signal 9", 1),
    ],
)
def test_a_client_that_cannot_be_served_is_told_why_and_whether_to_try_again(
    tmp_path: Path, behaviour: str, words: str, code: int
) -> None:
    with bridged(tmp_path, behaviour) as client:
        client.send(id=1, method="initialize", params={})
        error = client.next()["error"]
        assert words in error["message"]
        assert "()" not in error["message"]
        told = ("INVALID_INPUT", False) if code == 78 else ("INTERNAL", True)
        assert (error["data"]["code"], error["data"]["retryable"]) == told
        assert client.process.wait(30) == code
        assert words in (tmp_path / "bridge.stderr").read_text()
    with bridged(tmp_path, behaviour) as client:
        assert client.leave() == code


def test_a_client_that_is_to_have_its_own_gateway_keeps_its_input(tmp_path: Path) -> None:
    with bridged(tmp_path, "alone") as client:
        assert client.process.wait(30) == 42


def test_where_nobody_can_listen_the_client_gets_its_own_gateway(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the place of the folder")
    with bridged(tmp_path) as client:
        assert client.process.wait(30) == 42


def test_a_folder_of_sockets_that_is_open_to_others_is_closed_and_the_client_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    with bridged(tmp_path) as client:
        client.handshake()
        assert "was open to others (mode 777)" in (tmp_path / "bridge.stderr").read_text()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert client.leave() == 0


def test_large_messages_pass_both_ways_and_nothing_stands_still_where_nobody_reads(tmp_path: Path) -> None:
    size = 64 * 1024 * 1024
    with bridged(tmp_path) as client:
        client.handshake()
        client.call(1, "big", size=size)
        assert len(client.next()["result"]["x"]) == size
        client.call(2, "echo", text="y" * size)
        assert len(client.next()["result"]["echo"]["text"]) == size


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_bridge_and_leaves_the_gateway(tmp_path: Path, number: signal.Signals) -> None:
    with bridged(tmp_path) as client:
        client.handshake()
        client.process.send_signal(number)
        assert client.process.wait(30) == 0
        with bridged(tmp_path) as other:
            other.handshake()
            other.call(1, "echo")
            assert other.next()["result"]["by"] == 1
