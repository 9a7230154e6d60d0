"""Calls that carry out each task of the office, as somebody makes them who has read all that it takes."""

from __future__ import annotations

from typing import Any

Call = tuple[str, dict[str, Any]]


def _at(name: str) -> str:
    return f"{name}@larkfield.example"


ME = _at("mara.lindqvist")


def _reply(to: str, answered: str, body: str) -> Call:
    return ("mail__send_message", {"to": [to], "subject": "Re", "body": body, "in_reply_to": answered})


def _ticket(id: str, **changes: Any) -> Call:
    return ("helpdesk__update_ticket", {"ticket_id": id, **changes})


def _answer(id: str, text: str) -> Call:
    return ("helpdesk__reply_to_customer", {"ticket_id": id, "text": text})


def _post(channel: str, text: str, **more: Any) -> Call:
    return ("chat__post_message", {"channel": channel, "text": text, **more})


def _deal(id: str, **changes: Any) -> Call:
    return ("crm__update_deal", {"deal_id": id, **changes})


def _event(id: str, **changes: Any) -> Call:
    return ("calendar__update_event", {"event_id": id, **changes})


def _issue_state(id: str, state: str) -> Call:
    return ("tracker__transition_issue", {"issue_id": id, "state": state})


def _page(id: str, tool: str, **changes: Any) -> Call:
    return (f"wiki__{tool}", {"page_id": id, **changes})


def _unshare(path: str) -> Call:
    return ("drive__revoke_share", {"path": path, "email": _at("marc.dubois")})


SOLUTIONS: dict[str, list[Call]] = {
    "new phone number": [("crm__update_contact", {"contact_id": "CON-3", "phone": "+47 555 0199"})],
    "offer accepted": [
        _deal("DEAL-1", stage="won", close_date="2026-11-30"),
        ("chat__send_direct_message", {"user": "jonas.weber", "text": "Tessel took our offer: 18,400 EUR."}),
    ],
    "delivery date": [_reply("ines.carvalho@northgate.example", "M-1", "They arrive on December 11th.")],
    "newsletters": [
        ("mail__move_message", {"message_id": "M-4", "folder": "archive"}),
        ("mail__mark_message", {"message_id": "M-4", "unread": False}),
        ("mail__move_message", {"message_id": "M-5", "folder": "archive"}),
    ],
    "billed too much": [
        ("billing__issue_credit_note", {"invoice_id": "INV-2044", "amount": 290, "reason": "5 of 6 came"}),
        _reply("dana.okafor@cedarclinics.example", "M-7", "We give you 290.00 EUR back."),
    ],
    "reservation by mail": [
        ("stock__reserve_stock", {"sku": "PH-200", "warehouse": "north", "quantity": 40, "company_id": "CMP-6"}),
        _reply("leo.brandt@orbisfoods.example", "M-8", "Your 40 probes are reserved."),
    ],
    "contact twice": [("crm__merge_contacts", {"keep_id": "CON-4", "duplicate_id": "CON-5"})],
    "a draft that waits": [
        (
            "mail__update_draft",
            {"message_id": "M-12", "body": "Dear Ruth, we come in the week of 14 December. Mara"},
        ),
        ("mail__send_draft", {"message_id": "M-12"}),
    ],
    "budget compared": [_reply(_at("anna.schmidt"), "M-6", "It grows by 15,000.")],
    "a call from Uppsala": [
        ("crm__log_activity", {"contact_id": "CON-9", "kind": "call", "note": "They take the spectrometers."}),
        _deal("DEAL-2", stage="won", close_date="2026-11-30"),
        ("crm__update_company", {"company_id": "CMP-8", "status": "customer"}),
    ],
    "deals that are late": [_deal("DEAL-2", close_date="2027-01-15")],
    "moved house": [("crm__update_company", {"company_id": "CMP-2", "address": "Rheinweg 90, Basel"})],
    "a lost customer": [
        ("stock__release_reservation", {"reservation_id": "RES-4"}),
        ("billing__write_off_invoice", {"invoice_id": "INV-2046"}),
        _deal("DEAL-7", stage="lost"),
    ],
    "reminders by the rules": [
        ("billing__send_reminder", {"invoice_id": "INV-2041", "level": 2}),
        ("billing__send_reminder", {"invoice_id": "INV-2042"}),
        ("billing__send_reminder", {"invoice_id": "INV-2046", "level": 1}),
    ],
    "bank statement": [
        ("billing__record_payment", {"invoice_id": "INV-2045", "amount": 750}),
        ("billing__record_payment", {"invoice_id": "INV-2042", "amount": 900, "method": "transfer"}),
        ("billing__record_payment", {"invoice_id": "INV-2044", "amount": 1740}),
        ("mail__send_message", {"to": [_at("anna.schmidt")], "subject": "Unknown", "body": "XX-1 fits no invoice."}),
    ],
    "billed twice": [
        ("billing__void_invoice", {"invoice_id": "INV-2049"}),
        _post("#finance", "I have voided INV-2049."),
    ],
    "invoice goes out": [
        ("billing__update_invoice", {"invoice_id": "INV-2047", "due_date": "2027-01-15"}),
        ("billing__send_invoice", {"invoice_id": "INV-2047"}),
    ],
    "new invoice": [
        (
            "billing__create_invoice",
            {
                "company_id": "CMP-6",
                "lines": [{"sku": "PH-200", "quantity": 40, "unit_price": 120, "description": "pH probe"}],
                "due_date": "2026-12-30",
                "reference": "OF-9",
            },
        ),
        ("billing__send_invoice", {"invoice_id": "INV-901"}),
    ],
    "a new quote": [
        (
            "drive__write_file",
            {
                "path": "/sales/quotes/alder-university-2026-12.txt",
                "content": "4 spectrometers SP-10 at 4,500 EUR: 18,000 EUR.",
            },
        )
    ],
    "tickets twice": [
        ("helpdesk__merge_tickets", {"source_id": "TCK-3", "target_id": "TCK-2"}),
        _ticket("TCK-2", priority="high", assignee=_at("hana.kimura")),
    ],
    "tickets of a leaver": [_ticket(id, assignee=_at("jonas.weiss")) for id in ("TCK-2", "TCK-6", "TCK-12")],
    "shares of a leaver": [
        _unshare("/sales/quotes/tessel-2026-10.txt"),
        _unshare("/operations/notes-old.txt"),
        _unshare("/people/plan-2027.txt"),
    ],
    "urgent ticket": [
        _ticket("TCK-1", priority="urgent", assignee=_at("hana.kimura")),
        _post("support", "TCK-1 is urgent.", thread="P-1"),
    ],
    "spam": [_ticket("TCK-9", status="closed")],
    "certificate": [
        (
            "drive__share_file",
            {
                "path": "/support/certificates/SP-10-4471.txt",
                "email": "peter.hall@halden.example",
                "role": "viewer",
            },
        ),
        _answer("TCK-4", "It is CERT-90817."),
        _ticket("TCK-4", status="solved"),
    ],
    "news for those who wait": [
        _answer("TCK-5", "4.1.1 comes on 4 December."),
        _answer("TCK-6", "4.1.1 comes on 2026-12-04."),
    ],
    "ticket becomes an issue": [
        (
            "tracker__create_issue",
            {
                "project": "WEB",
                "title": "The export is empty",
                "description": "See TCK-10.",
                "priority": "high",
                "assignee": "oluwaseun.adeyemi",
            },
        ),
        ("helpdesk__add_internal_note", {"ticket_id": "TCK-10", "text": "ISS-901"}),
    ],
    "a spare part": [
        ("stock__reserve_stock", {"sku": "SP-DOOR", "warehouse": "north", "quantity": 1, "company_id": "CMP-8"}),
        ("helpdesk__tag_ticket", {"ticket_id": "TCK-8", "add": ["shipping"]}),
        _ticket("TCK-8", status="pending"),
    ],
    "known faults": [_page("PG-6", "append_to_page", text="- Firmware 4.1: pH probes drift (ISS-12)")],
    "one to one moves": [_event("EV-3", start="2026-12-03T09:00:00", end="2026-12-03T09:30:00")],
    "no lunch": [("calendar__cancel_event", {"event_id": "EV-6", "message": "No lunch this week."})],
    "a meeting about drift": [
        (
            "calendar__create_event",
            {
                "title": "Drift of pH probes",
                "start": "2026-12-02T11:30:00",
                "end": "2026-12-02T12:30:00",
                "attendees": [_at("tomas.rivera"), ME, _at("priya.nair")],
            },
        )
    ],
    "one more at the weekly": [
        _event(id, attendees=[ME, _at("priya.nair"), _at("anna.schmitt"), _at("karin.holm")]) for id in ("EV-1", "EV-8")
    ],
    "first day": [
        ("people__assign_equipment", {"employee_id": "E-115", "item": "laptop"}),
        ("people__assign_equipment", {"employee_id": "E-115", "item": "badge"}),
        _post("general", "Welcome, Samir!"),
        (
            "calendar__create_event",
            {
                "title": "Introduction",
                "start": "2026-12-01T10:00:00",
                "end": "2026-12-01T11:00:00",
                "attendees": [ME, _at("samir.haddad")],
            },
        ),
    ],
    "Christmas": [
        ("people__approve_absence", {"absence_id": "ABS-1"}),
        ("people__reject_absence", {"absence_id": "ABS-2", "comment": "Anna is away then."}),
    ],
    "training": [("people__approve_absence", {"absence_id": "ABS-4"})],
    "ill": [
        (
            "people__request_absence",
            {"employee_id": "E-107", "kind": "sick", "start": "2026-11-30", "end": "2026-12-01"},
        ),
        _event("EV-5", attendees=[ME, _at("karin.holm")]),
    ],
    "a move within the house": [
        ("people__update_employee", {"employee_id": "E-109", "room": "Birch 7", "manager_id": "E-110"})
    ],
    "merge what is ready": [
        ("forge__merge_pull", {"pull_id": "PR-31", "method": "squash"}),
        _issue_state("ISS-12", "done"),
    ],
    "a dead end": [
        ("forge__close_pull", {"pull_id": "PR-32"}),
        ("forge__delete_branch", {"repository": "firmware", "branch": "faster-bus"}),
    ],
    "old branches": [
        ("forge__delete_branch", {"repository": "portal", "branch": branch}) for branch in ("csv-export", "old-theme")
    ],
    "licence dates": [
        ("forge__approve_pull", {"pull_id": "PR-33"}),
        ("forge__merge_pull", {"pull_id": "PR-33"}),
        _issue_state("ISS-16", "done"),
        _answer("TCK-2", "It is mended."),
    ],
    "nightly run": [("forge__rerun_pipeline", {"run_id": "RUN-3"})],
    "release": [
        ("forge__create_release", {"repository": "firmware", "version": "4.1.1", "notes": "No drift (ISS-12)."}),
        ("chat__set_channel_topic", {"channel": "release-4-2", "topic": "Firmware 4.2 (4.1.1 is out)"}),
    ],
    "a channel ends": [
        _post("release-4-1", "We go on in #release-4-2."),
        ("chat__archive_channel", {"channel": "release-4-1"}),
    ],
    "too much for the sprint": [
        ("tracker__update_issue", {"issue_id": id, "sprint_id": "SPR-3"}) for id in ("ISS-18", "ISS-19")
    ],
    "issue twice": [
        ("tracker__link_issues", {"issue_id": "ISS-14", "other_id": "ISS-12", "kind": "duplicates"}),
        _issue_state("ISS-14", "wont_do"),
    ],
    "returns": [_page("PG-5", "archive_page"), _page("PG-4", "move_page", parent_id="PG-3")],
    "suppliers": [
        _page(
            "PG-11",
            "update_page",
            title="Suppliers",
            body="Glassworks Jena orders@glassworks.example, Voltera Cables sales@voltera.example, "
            "Oxytron office@oxytron.example",
        ),
        _page("PG-11", "move_page", parent_id="PG-2"),
    ],
    "counted": [
        ("stock__adjust_stock", {"sku": "PH-200", "warehouse": "north", "change": -4, "reason": "count"}),
        ("stock__adjust_stock", {"sku": "CB-5", "warehouse": "north", "change": 2, "reason": "count"}),
    ],
    "order what is short": [
        ("stock__create_purchase_order", {"supplier_id": supplier, "lines": [{"sku": sku, "quantity": quantity}]})
        for supplier, sku, quantity in (("SUP-3", "OX-3", 80), ("SUP-2", "CB-10", 120))
    ],
    "a parcel": [
        ("stock__receive_purchase_order", {"order_id": "PUR-31", "warehouse": "south"}),
        _post("warehouse", "It is booked.", thread="P-2"),
    ],
    "end of a model": [
        ("stock__adjust_stock", {"sku": "PH-100", "warehouse": "north", "change": -3, "reason": "scrapped"}),
        ("stock__discontinue_item", {"sku": "PH-100"}),
    ],
    "cables for the south": [
        (
            "stock__transfer_stock",
            {"sku": "CB-5", "from_warehouse": "north", "to_warehouse": "south", "quantity": 45},
        )
    ],
}
