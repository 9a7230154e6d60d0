"""The office keeps its state, its tasks can be done, and its judge notices what is missing and what is too much."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.office.expected import Has, Set, added, changed, changes, faults, fits, removed
from benchmarks.office.servers import SYSTEMS, fresh_tables, other_servers
from benchmarks.office.system import Office, called
from benchmarks.office.tasks import TASKS, OfficeTask
from tests.benchmarks.office_solutions import SOLUTIONS, Call

TOOLS = {f"{system.name}__{tool.name}": tool for system in SYSTEMS for tool in system.tools}


def _after(office: Office, *calls: Call) -> list[dict[str, Any]]:
    return [called(TOOLS[name], office, arguments) for name, arguments in calls]


def test_there_are_forty_tasks_in_eight_systems_at_least() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS) >= 40
    assert len(SYSTEMS) >= 8
    changed = Counter(want.table.partition(".")[0] for task in TASKS for want in task.wanted)
    assert counted_systems(changed) == {system.name for system in SYSTEMS}
    assert sum(len(task.wanted) > 1 for task in TASKS) >= 30


def counted_systems(counts: Counter[str]) -> set[str]:
    return {name for name, count in counts.items() if count >= 2}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_done_by_its_solution_alone(task: OfficeTask) -> None:
    before = fresh_tables()
    office = Office(fresh_tables())
    assert task.faults(before, office.tables), "what changes nothing cannot be right"
    for result in _after(office, *SOLUTIONS[task.name]):
        assert "isError" not in result, result
    assert task.faults(before, office.tables) == []
    _after(office, ("stock__set_reorder_level", {"sku": "TS-1", "reorder_level": 31}))
    [fault] = task.faults(before, office.tables)
    assert fault == "not asked for: changed stock.items TS-1 {'reorder_level': 31}"


@pytest.mark.parametrize("task", [task for task in TASKS if len(SOLUTIONS[task.name]) > 1], ids=lambda task: task.name)
def test_half_a_task_is_not_done(task: OfficeTask) -> None:
    office = Office(fresh_tables())
    _after(office, SOLUTIONS[task.name][0])
    assert task.faults(fresh_tables(), office.tables)


@pytest.mark.parametrize(
    ("task", "trap"),
    [
        ("newsletters", [("mail__delete_message", {"message_id": id}) for id in ("M-4", "M-5")]),
        ("no lunch", [("calendar__delete_event", {"event_id": "EV-6"})]),
        ("spam", [("helpdesk__delete_ticket", {"ticket_id": "TCK-9"})]),
        ("contact twice", [("crm__delete_contact", {"contact_id": "CON-5"})]),
        ("deals that are late", [("crm__update_deal", {"deal_id": "DEAL-5", "close_date": "2027-01-15"})]),
        ("a move within the house", [("people__update_employee", {"employee_id": "E-108", "room": "Birch 7"})]),
    ],
)
def test_a_twin_that_is_taken_for_the_right_one_is_noticed(task: str, trap: list[Call]) -> None:
    office = Office(fresh_tables())
    assert all("isError" not in result for result in _after(office, *trap))
    [asked] = [each for each in TASKS if each.name == task]
    assert asked.faults(fresh_tables(), office.tables)


def test_wrong_arguments_and_refusals_change_nothing_and_say_why() -> None:
    office = Office(fresh_tables())
    wrong, unknown, refused = _after(
        office,
        ("billing__record_payment", {"invoice_id": "INV-2044", "amount": "much"}),
        ("crm__get_contact", {"contact_id": "CON-99"}),
        ("billing__send_invoice", {"invoice_id": "INV-2041"}),
    )
    assert [each["isError"] for each in (wrong, unknown, refused)] == [True] * 3
    assert wrong["content"][0]["text"] == "invalid arguments: amount: 'much' is not of type 'number'"
    assert unknown["content"][0]["text"] == "contacts: nothing has the id 'CON-99'"
    assert "status is 'overdue'" in refused["content"][0]["text"]
    assert changes(fresh_tables(), office.tables) == []


def test_searches_filter_by_words_fields_days_and_numbers() -> None:
    office = Office(fresh_tables())

    def ids(tool: str, **arguments: Any) -> list[str]:
        [result] = _after(office, (tool, arguments))
        [rows] = [value for value in result["structuredContent"].values() if isinstance(value, list)]
        return [row["id"] for row in rows]

    assert ids("mail__search_messages", query="labworld", unread=True) == ["M-4", "M-5"]
    assert ids("calendar__list_events", from_start="2026-12-03", to_start="2026-12-03") == ["EV-2"]
    assert ids("billing__search_invoices", status="overdue", min_total=1000) == ["INV-2041", "INV-2045"]
    assert ids("helpdesk__search_tickets", tags="drift", limit=1) == ["TCK-5"]
    assert ids("stock__list_levels", max_on_hand=2) == ["PH-100@south", "SP-10@south", "SP-DOOR@south"]


def test_others_come_as_whole_servers_and_change_nothing() -> None:
    servers = other_servers(150)
    assert 150 <= sum(len(server.tools) for server in servers.values()) <= 200
    assert not servers.keys() & {system.name for system in SYSTEMS}
    assert sum(len(server.tools) for server in other_servers(380).values()) == 380
    with pytest.raises(ValueError, match="there are 380 tools of others, not 381"):
        other_servers(381)


def test_changes_are_met_in_any_order_and_nothing_beside_them() -> None:
    before: dict[str, Any] = {"t": {"a": {"id": "a", "x": 1, "y": 1}, "b": {"id": "b"}}}
    after: dict[str, Any] = {"t": {"a": {"id": "a", "x": 2, "y": 1}, "c": {"id": "c", "text": "Hello"}}}
    made = changes(before, after)
    wanted = [removed("t", "b"), changed("t", "a", x=2), added("t", text=Has("hello"))]
    assert faults(wanted, made) == []
    assert faults([changed("t", "a", x=2, y=1), *wanted[::2]], made) == [
        "missing: changed t a {'x': 2, 'y': 1}",
        "not asked for: changed t a {'x': 2}",
    ]
    assert faults([wanted[0], wanted[2]], made, free=("t:x",)) == []


@pytest.mark.parametrize(
    ("wanted", "value", "does_fit"),
    [
        (Has("18400"), "for 18,400.00 EUR", True),
        (Has("18400"), "for 18 400 EUR", True),
        (Has("18400"), "for 118,4 EUR", False),
        (Has(("4 December", "December 4")), "on december 4", True),
        (Has("14 December", without=("7 December",)), "14 December, not 7 December", False),
        (Set("a", "b"), ["b", "a"], True),
        (Set("a", "b"), ["a", "b", "c"], False),
        (Set("a"), "a", False),
        ([{"x": 1}], [{"x": 1, "more": 2}], True),
        ([{"x": 1}], [], False),
    ],
)
def test_values_fit_as_their_matchers_say(wanted: Any, value: Any, does_fit: bool) -> None:
    assert fits(wanted, value) is does_fit
