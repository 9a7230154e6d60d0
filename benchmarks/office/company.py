"""Colleagues and their absences; stock and purchase orders."""

from __future__ import annotations

from typing import Any

from benchmarks.office.system import (
    NOW,
    Arguments,
    Office,
    RefusedError,
    System,
    creating,
    custom,
    fields,
    many,
    reading,
    searching,
    setting,
    text,
    updating,
    whole,
)
from pml_gateway.types import Effect


def _offboard(office: Office, given: Arguments) -> Any:
    employee = office.record("people.employees", given["employee_id"])
    employee.update({"status": "left", "last_day": given["last_day"]})
    return dict(employee)


PEOPLE = System(
    "people",
    "Colleagues, their absences and equipment. A handle is firstname.lastname.",
    (
        searching(
            "search_employees",
            "Find colleagues.",
            "people.employees",
            "name email title",
            "name email handle title department status",
            department=text("only of this department"),
            manager_id=text("only those with this manager"),
            status=text("the state", "active", "left", "starting"),
        ),
        reading(
            "get_employee",
            "Show a colleague with absences and equipment.",
            "people.employees",
            "employee_id",
            absences=("people.absences", "employee_id"),
            equipment=("people.equipment", "employee_id"),
        ),
        updating(
            "update_employee",
            "Change title, department, manager, phone or room of a colleague.",
            "people.employees",
            "employee_id",
            links={"manager_id": "people.employees"},
            title=text("the job title"),
            department=text("the department"),
            manager_id=text("the manager's id"),
            phone=text("the phone number"),
            room=text("the room"),
        ),
        searching(
            "list_absences",
            "List absences.",
            "people.absences",
            "reason",
            employee_id=text("only of this colleague"),
            status=text("the state", "requested", "approved", "rejected"),
            from_start=text("beginning from this day on, YYYY-MM-DD"),
            to_start=text("beginning up to this day, YYYY-MM-DD"),
        ),
        setting(
            "approve_absence",
            "Approve a requested absence.",
            "people.absences",
            "absence_id",
            {"status": "approved"},
            only={"status": ["requested"]},
        ),
        setting(
            "reject_absence",
            "Reject a requested absence.",
            "people.absences",
            "absence_id",
            {"status": "rejected"},
            only={"status": ["requested"]},
            required="comment",
            comment=text("why, for the colleague"),
        ),
        creating(
            "request_absence",
            "Request an absence for a colleague.",
            "people.absences",
            "ABS",
            "employee_id kind start end",
            defaults={"status": "requested", "reason": ""},
            links={"employee_id": "people.employees"},
            employee_id=text("the id"),
            kind=text("what it is", "vacation", "sick", "training", "parental"),
            start=text("the first day, YYYY-MM-DD"),
            end=text("the last day, YYYY-MM-DD"),
            reason=text("a note"),
        ),
        creating(
            "assign_equipment",
            "Give a colleague a device, a key or a card.",
            "people.equipment",
            "EQ",
            "employee_id item",
            defaults={"date": NOW[:10]},
            links={"employee_id": "people.employees"},
            employee_id=text("the id"),
            item=text("what, as laptop, phone, badge, key"),
            serial=text("the serial number"),
        ),
        custom(
            "offboard_employee",
            "End an employment: accounts are closed and cards are blocked. Cannot be undone.",
            Effect.DESTRUCTIVE,
            _offboard,
            "employee_id last_day",
            employee_id=text("the id"),
            last_day=text("YYYY-MM-DD"),
        ),
    ),
)

_WAREHOUSE = ("north", "south")


def _adjust(office: Office, given: Arguments) -> Any:
    level = _level(office, given["sku"], given["warehouse"])
    if level["on_hand"] + given["change"] < level["reserved"]:
        raise RefusedError(f"{given['sku']}: {level['on_hand']} on hand, {level['reserved']} of them reserved")
    level["on_hand"] += given["change"]
    office.add("stock.movements", "MV", {"date": NOW[:10], **given})
    return dict(level)


def _transfer(office: Office, given: Arguments) -> Any:
    source = _level(office, given["sku"], given["from_warehouse"])
    target = _level(office, given["sku"], given["to_warehouse"])
    if source["on_hand"] - source["reserved"] < given["quantity"]:
        raise RefusedError(
            f"only {source['on_hand'] - source['reserved']} of {given['sku']} are free in {source['warehouse']}"
        )
    source["on_hand"] -= given["quantity"]
    target["on_hand"] += given["quantity"]
    return {"from": dict(source), "to": dict(target)}


def _reserve(office: Office, given: Arguments) -> Any:
    level = _level(office, given["sku"], given["warehouse"])
    free = level["on_hand"] - level["reserved"]
    if free < given["quantity"]:
        raise RefusedError(f"only {free} of {given['sku']} are free in {given['warehouse']}")
    office.record("crm.companies", given["company_id"])
    level["reserved"] += given["quantity"]
    return office.add("stock.reservations", "RES", {"date": NOW[:10], **given})


def _release(office: Office, given: Arguments) -> Any:
    reservation = office.record("stock.reservations", given["reservation_id"])
    _level(office, reservation["sku"], reservation["warehouse"])["reserved"] -= reservation["quantity"]
    del office.tables["stock.reservations"][reservation["id"]]
    return {"released": reservation["id"]}


def _level(office: Office, sku: str, warehouse: str) -> dict[str, Any]:
    office.record("stock.items", sku)
    return office.record("stock.levels", f"{sku}@{warehouse}")


def _order(office: Office, given: Arguments) -> Any:
    office.record("stock.suppliers", given["supplier_id"])
    for line in given["lines"]:
        office.record("stock.items", line["sku"])
    return office.add("stock.orders", "PUR", {"status": "ordered", "date": NOW[:10], **given})


def _receive(office: Office, given: Arguments) -> Any:
    order = office.record("stock.orders", given["order_id"])
    if order["status"] != "ordered":
        raise RefusedError(f"{order['id']} is {order['status']}")
    for line in order["lines"]:
        _level(office, line["sku"], given["warehouse"])["on_hand"] += line["quantity"]
    order["status"] = "received"
    return dict(order)


_SKU = text("the item's number, as PH-200")
_IN = text("the warehouse", *_WAREHOUSE)

STOCK = System(
    "stock",
    "Items, stock levels of the two warehouses (north, south), reservations for customers, and purchase orders.",
    (
        searching(
            "search_items",
            "Find items.",
            "stock.items",
            "id name category",
            category=text("only of this category"),
            supplier_id=text("only of this supplier"),
            status=text("the state", "active", "discontinued"),
        ),
        reading(
            "get_item",
            "Show an item with its levels in both warehouses and its reservations.",
            "stock.items",
            "sku",
            levels=("stock.levels", "sku"),
            reservations=("stock.reservations", "sku"),
        ),
        searching(
            "list_levels",
            "List stock levels.",
            "stock.levels",
            "sku",
            warehouse=_IN,
            sku=_SKU,
            max_on_hand=whole("at most so many on hand"),
        ),
        custom(
            "adjust_stock",
            "Correct a level after counting, breakage or a find.",
            Effect.WRITE,
            _adjust,
            "sku warehouse change reason",
            sku=_SKU,
            warehouse=_IN,
            change=whole("by how many, negative for fewer"),
            reason=text("why"),
        ),
        custom(
            "transfer_stock",
            "Move pieces from one warehouse to the other.",
            Effect.WRITE,
            _transfer,
            "sku from_warehouse to_warehouse quantity",
            sku=_SKU,
            from_warehouse=_IN,
            to_warehouse=_IN,
            quantity=whole("how many"),
        ),
        custom(
            "reserve_stock",
            "Reserve pieces for a customer.",
            Effect.WRITE,
            _reserve,
            "sku warehouse quantity company_id",
            sku=_SKU,
            warehouse=_IN,
            quantity=whole("how many"),
            company_id=text("the company's id in the CRM"),
        ),
        custom(
            "release_reservation",
            "Free reserved pieces again.",
            Effect.DESTRUCTIVE,
            _release,
            "reservation_id",
            reservation_id=text("the id"),
        ),
        updating(
            "set_reorder_level",
            "Set the level below which an item is ordered again.",
            "stock.items",
            "sku",
            reorder_level=whole("how many in both warehouses"),
        ),
        setting(
            "discontinue_item",
            "Stop selling an item: it is taken out of the catalog and of all price lists. Cannot be undone.",
            "stock.items",
            "sku",
            {"status": "discontinued"},
            effect=Effect.DESTRUCTIVE,
        ),
        searching("list_suppliers", "List suppliers.", "stock.suppliers", "name"),
        searching(
            "list_purchase_orders",
            "List purchase orders.",
            "stock.orders",
            "id",
            supplier_id=text("only of this supplier"),
            status=text("the state", "ordered", "received", "cancelled"),
        ),
        custom(
            "create_purchase_order",
            "Order items from a supplier.",
            Effect.WRITE,
            _order,
            "supplier_id lines",
            supplier_id=text("the supplier's id"),
            lines=many("what is ordered", fields("sku quantity", sku=_SKU, quantity=whole("how many"))),
            note=text("a note to the supplier"),
            expected=text("when it should come, YYYY-MM-DD"),
        ),
        custom(
            "receive_purchase_order",
            "Book all pieces of an order that has come into a warehouse.",
            Effect.WRITE,
            _receive,
            "order_id warehouse",
            order_id=text("the id"),
            warehouse=_IN,
        ),
        setting(
            "cancel_purchase_order",
            "Cancel an order that has not come.",
            "stock.orders",
            "order_id",
            {"status": "cancelled"},
            only={"status": ["ordered"]},
            effect=Effect.DESTRUCTIVE,
        ),
    ),
)
SYSTEMS = (PEOPLE, STOCK)
