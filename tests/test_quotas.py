"""Fair shares: nobody who holds less than an equal part loses anything to others, and who is alone may hold all."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.quotas import Holdings, Turn, Turns, quota_key_of_address

CLIENTS = ("a", "b", "c")
ADDRESSES = tuple(quota_key_of_address(f"192.0.2.{number}") for number in range(4))


@given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(1, 5)), max_size=200), st.integers(5, 60))
def test_nobody_below_an_equal_part_loses_anything(puts: list[tuple[str, int]], room: int) -> None:
    held: Holdings[int] = Holdings()
    for key, (quota_key, amount) in enumerate(puts):
        held.note(key, quota_key, amount)
        while held.total > room:
            gone = held.first_to_go()
            assert gone is not None
            loser = puts[gone][0]
            assert gone == next(held.of(loser))
            assert held.held_by(loser) * sum(held.held_by(one) > 0 for one in CLIENTS) >= held.total
            held.forget(gone)
    assert held.total == sum(puts[key][1] for key in held) == sum(held.held_by(one) for one in CLIENTS)


@given(st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=100), st.integers(2, 40))
def test_any_number_of_addresses_leave_a_client_with_a_key_its_half(flood: list[str], room: int) -> None:
    held: Holdings[object] = Holdings()
    for number in range(room // 2):
        held.note(("mine", number), "a")
    for number, address in enumerate(flood):
        held.note(number, address)
        while held.total > room:
            held.forget(held.first_to_go())
    assert held.held_by("a") == room // 2


def test_who_is_alone_holds_everything_and_loses_what_it_used_longest_ago() -> None:
    held: Holdings[str] = Holdings()
    for key in "xyz":
        held.note(key, "a")
    held.used("x")
    assert held.first_to_go() == "y"
    held.note("y", "a")
    assert held.first_to_go() == "z"
    assert (held.total, len(held), held.forget("z"), held.forget("z")) == (3, 3, True, False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("a-socket", "192.0.2.1", False),
    ],
)
def test_an_address_is_one_share_and_so_is_an_ipv6_network(one: str, other: str, same: bool) -> None:
    assert (quota_key_of_address(one) == quota_key_of_address(other)) is same


@pytest.fixture
async def turns() -> Turns:
    """The turns of a gateway that two clients have just asked, one after the other."""
    turns = Turns()
    assert [await turns.next("one") for _ in range(3)] == [None] * 3
    other = await turns.next("other")
    assert other is not None
    other.end()
    return turns


@pytest.mark.anyio
async def test_requests_of_a_client_begin_one_after_the_other_while_another_client_asks(turns: Turns) -> None:
    begun: dict[str, Turn] = {}

    async def ask(client: str, name: str) -> None:
        turn = await turns.next(client)
        assert turn is not None
        begun[name] = turn

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as gone:
        for number in range(2):
            tasks.start_soon(ask, "many", f"many {number}")
        gone.start_soon(ask, "many", "gone")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask, "many", "many 2")
        tasks.start_soon(ask, "few", "few 0")
        await anyio.wait_all_tasks_blocked()
        assert [*begun] == ["many 0", "few 0"]
        begun["many 0"].end()
        begun["many 0"].end()
        await anyio.wait_all_tasks_blocked()
        assert [*begun] == ["many 0", "few 0", "many 1"]
        # Who is next goes away, and the turn is that of who comes after it.
        gone.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        begun["many 1"].end()
    assert [*begun] == ["many 0", "few 0", "many 1", "many 2"]


@pytest.mark.anyio
async def test_a_turn_that_is_not_ended_keeps_no_other_back_for_long(turns: Turns) -> None:
    with anyio.fail_after(20):
        for _ in range(3):
            assert await turns.next("one") is not None
