"""Customers, their tickets and their invoices."""

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
    number,
    reading,
    removing,
    searching,
    setting,
    text,
    updating,
    whole,
)
from pml_gateway.types import Effect

_STAGE = ("new", "qualified", "quoted", "won", "lost")


def _merge_contacts(office: Office, given: Arguments) -> Any:
    kept = office.record("crm.contacts", given["keep_id"])
    gone = office.record("crm.contacts", given["duplicate_id"])
    if kept is gone:
        raise RefusedError("a contact cannot be merged with itself")
    for name, value in gone.items():
        if kept.get(name) in ("", None):
            kept[name] = value
    for table in ("crm.deals", "crm.activities"):
        for record in office.rows(table):
            if record["contact_id"] == gone["id"]:
                record["contact_id"] = kept["id"]
    del office.tables["crm.contacts"][gone["id"]]
    return dict(kept)


_CONTACT = {
    "name": text("first and last name"),
    "email": text("the e-mail address"),
    "phone": text("the phone number"),
    "company_id": text("the company's id"),
    "role": text("what they do there"),
}
_DEAL = {
    "stage": text("how far it is", *_STAGE),
    "amount": number("EUR, without tax"),
    "close_date": text("when it will be or was closed, YYYY-MM-DD"),
    "owner": text("the e-mail address of the colleague whose deal it is"),
}

CRM = System(
    "crm",
    "Companies, contacts, deals and activities of Larkfield's customers. Invoices are in billing.",
    (
        searching(
            "search_contacts",
            "Find contacts.",
            "crm.contacts",
            "name email role",
            company_id=text("only of this company"),
        ),
        reading(
            "get_contact",
            "Show a contact with its activities.",
            "crm.contacts",
            "contact_id",
            activities=("crm.activities", "contact_id"),
        ),
        creating(
            "create_contact",
            "Add a contact.",
            "crm.contacts",
            "CON",
            "name email company_id",
            defaults={"phone": "", "role": ""},
            links={"company_id": "crm.companies"},
            **_CONTACT,
        ),
        updating(
            "update_contact",
            "Change fields of a contact.",
            "crm.contacts",
            "contact_id",
            links={"company_id": "crm.companies"},
            **_CONTACT,
        ),
        custom(
            "merge_contacts",
            "Merge two records of one person: deals and activities move, the duplicate is gone. Cannot be undone.",
            Effect.DESTRUCTIVE,
            _merge_contacts,
            "keep_id duplicate_id",
            keep_id=text("the contact that stays"),
            duplicate_id=text("the contact that is merged into it"),
        ),
        removing("delete_contact", "Delete a contact for good.", "crm.contacts", "contact_id"),
        searching(
            "search_companies",
            "Find companies.",
            "crm.companies",
            "name city",
            industry=text("only of this industry"),
            status=text("the relation", "customer", "prospect", "former"),
        ),
        reading(
            "get_company",
            "Show a company with its contacts and deals.",
            "crm.companies",
            "company_id",
            contacts=("crm.contacts", "company_id"),
            deals=("crm.deals", "company_id"),
        ),
        updating(
            "update_company",
            "Change fields of a company.",
            "crm.companies",
            "company_id",
            status=text("the relation", "customer", "prospect", "former"),
            address=text("the postal address"),
            account_manager=text("a colleague's e-mail address"),
        ),
        searching(
            "list_deals",
            "List deals.",
            "crm.deals",
            "title",
            stage=text("how far", *_STAGE),
            company_id=text("only of this company"),
            owner=text("a colleague's e-mail address"),
            min_amount=number("EUR at least"),
            to_close_date=text("to be closed by this day, YYYY-MM-DD"),
        ),
        reading("get_deal", "Show a deal.", "crm.deals", "deal_id"),
        creating(
            "create_deal",
            "Add a deal.",
            "crm.deals",
            "DEAL",
            "title company_id amount owner",
            defaults={"stage": "new", "contact_id": "", "close_date": ""},
            links={"company_id": "crm.companies", "contact_id": "crm.contacts"},
            title=text("what it is about"),
            company_id=text("the company's id"),
            contact_id=text("the contact's id"),
            **_DEAL,
        ),
        updating("update_deal", "Change stage, amount, date or owner of a deal.", "crm.deals", "deal_id", **_DEAL),
        removing("delete_deal", "Delete a deal for good, as if it had never been.", "crm.deals", "deal_id"),
        creating(
            "log_activity",
            "Record a call, a visit, a mail or a note on a contact.",
            "crm.activities",
            "ACT",
            "contact_id kind note",
            defaults={"date": NOW},
            links={"contact_id": "crm.contacts"},
            contact_id=text("the contact's id"),
            kind=text("what it was", "call", "visit", "mail", "note"),
            note=text("what was said"),
        ),
    ),
)


def _say(kind: str) -> Any:
    def say(office: Office, given: Arguments) -> Any:
        ticket = office.record("helpdesk.tickets", given["ticket_id"])
        if ticket["status"] == "closed" and kind == "reply":
            raise RefusedError(f"{ticket['id']} is closed: reopen it first (update_ticket, status open)")
        added = {**given, "kind": kind, "author": "mara.lindqvist@larkfield.example", "date": NOW}
        return office.add("helpdesk.comments", "CM", added)

    return say


def _merge_tickets(office: Office, given: Arguments) -> Any:
    source = office.record("helpdesk.tickets", given["source_id"])
    target = office.record("helpdesk.tickets", given["target_id"])
    if source is target:
        raise RefusedError("a ticket cannot be merged with itself")
    source.update({"status": "closed", "merged_into": target["id"]})
    for comment in office.rows("helpdesk.comments"):
        if comment["ticket_id"] == source["id"]:
            comment["ticket_id"] = target["id"]
    return dict(target)


def _tags(office: Office, given: Arguments) -> Any:
    ticket = office.record("helpdesk.tickets", given["ticket_id"])
    kept = [tag for tag in ticket["tags"] if tag not in given.get("remove", ())]
    ticket["tags"] = kept + [tag for tag in given.get("add", ()) if tag not in kept]
    return dict(ticket)


_STATUS = ("open", "pending", "solved", "closed")
_PRIORITY = ("low", "normal", "high", "urgent")

HELPDESK = System(
    "helpdesk",
    "Support tickets of Larkfield's customers, with replies that they read and notes that they do not.",
    (
        searching(
            "search_tickets",
            "Find tickets.",
            "helpdesk.tickets",
            "subject description",
            "subject requester company_id status priority assignee tags created",
            status=text("the state", *_STATUS),
            priority=text("the priority", *_PRIORITY),
            assignee=text("an agent's e-mail address, or `none`"),
            requester=text("the customer's e-mail address"),
            company_id=text("the company's id in the CRM"),
            tags=text("only with this tag"),
            to_created=text("opened up to this day, YYYY-MM-DD"),
        ),
        reading(
            "get_ticket",
            "Show a ticket with its replies and notes.",
            "helpdesk.tickets",
            "ticket_id",
            comments=("helpdesk.comments", "ticket_id"),
        ),
        creating(
            "create_ticket",
            "Open a ticket.",
            "helpdesk.tickets",
            "TCK",
            "subject description requester",
            defaults={
                "status": "open",
                "priority": "normal",
                "assignee": "none",
                "tags": [],
                "created": NOW[:10],
                "company_id": "",
            },
            subject=text("the subject"),
            description=text("what is wrong"),
            requester=text("the customer's e-mail address"),
            company_id=text("the company's id in the CRM"),
            priority=text("the priority", *_PRIORITY),
            assignee=text("an agent's e-mail address"),
            tags=many("tags"),
        ),
        updating(
            "update_ticket",
            "Change status, priority or assignee of a ticket.",
            "helpdesk.tickets",
            "ticket_id",
            status=text("the state", *_STATUS),
            priority=text("the priority", *_PRIORITY),
            assignee=text("an agent's e-mail address"),
        ),
        custom(
            "tag_ticket",
            "Add and remove tags of a ticket.",
            Effect.WRITE,
            _tags,
            "ticket_id",
            ticket_id=text("the id"),
            add=many("tags to add"),
            remove=many("tags to remove"),
        ),
        custom(
            "reply_to_customer",
            "Answer the customer; the text is sent by mail.",
            Effect.WRITE,
            _say("reply"),
            "ticket_id text",
            ticket_id=text("the id"),
            text=text("what the customer reads"),
        ),
        custom(
            "add_internal_note",
            "Write a note that only agents see.",
            Effect.WRITE,
            _say("note"),
            "ticket_id text",
            ticket_id=text("the id"),
            text=text("what agents read"),
        ),
        custom(
            "merge_tickets",
            "Merge a ticket into another: comments move to the target, the source is closed. Cannot be undone.",
            Effect.DESTRUCTIVE,
            _merge_tickets,
            "source_id target_id",
            source_id=text("the ticket that is closed"),
            target_id=text("the ticket that goes on"),
        ),
        removing("delete_ticket", "Delete a ticket and all that was written for it.", "helpdesk.tickets", "ticket_id"),
        searching("list_agents", "List the agents and whether they are on duty.", "helpdesk.agents", "name email"),
    ),
)

_OPEN = ("sent", "overdue")


def _invoice(office: Office, given: Arguments) -> Any:
    office.record("crm.companies", given["company_id"])
    total = round(sum(line["quantity"] * line["unit_price"] for line in given["lines"]), 2)
    new = {"status": "draft", "date": NOW[:10], "paid": 0, "total": total, "reference": ""}
    return office.add("billing.invoices", "INV", {**new, **given})


def _pay(office: Office, given: Arguments) -> Any:
    invoice = office.record("billing.invoices", given["invoice_id"])
    open_amount = round(invoice["total"] - invoice["paid"], 2)
    if invoice["status"] not in _OPEN or given["amount"] > open_amount:
        raise RefusedError(f"{invoice['id']} is {invoice['status']}, and {open_amount} EUR of it are open")
    invoice["paid"] = round(invoice["paid"] + given["amount"], 2)
    if invoice["paid"] == invoice["total"]:
        invoice["status"] = "paid"
    office.add("billing.payments", "PAY", {"date": NOW[:10], **given})
    return dict(invoice)


def _credit(office: Office, given: Arguments) -> Any:
    invoice = office.record("billing.invoices", given["invoice_id"])
    if given["amount"] > invoice["total"]:
        raise RefusedError(f"{invoice['id']} is only about {invoice['total']} EUR")
    return office.add("billing.credit_notes", "CN", {"date": NOW[:10], **given})


def _remind(office: Office, given: Arguments) -> Any:
    invoice = office.record("billing.invoices", given["invoice_id"])
    if invoice["status"] not in _OPEN:
        raise RefusedError(f"{invoice['id']} is {invoice['status']}: there is nothing to remind of")
    return office.add("billing.reminders", "REM", {"date": NOW[:10], "level": 1, **given})


def _balance(office: Office, given: Arguments) -> Any:
    office.record("crm.companies", given["company_id"])
    owed = [
        invoice
        for invoice in office.rows("billing.invoices")
        if invoice["company_id"] == given["company_id"] and invoice["status"] in _OPEN
    ]
    return {
        "open": round(sum(each["total"] - each["paid"] for each in owed), 2),
        "invoices": [each["id"] for each in owed],
    }


BILLING = System(
    "billing",
    "Invoices, payments, reminders and credit notes. Amounts are EUR; companies have their ids from the CRM.",
    (
        searching(
            "search_invoices",
            "Find invoices.",
            "billing.invoices",
            "id reference",
            "company_id status date due_date total paid reference",
            company_id=text("only of this company"),
            status=text("the state", "draft", "sent", "overdue", "paid", "void", "written_off"),
            from_date=text("written from this day on, YYYY-MM-DD"),
            to_due_date=text("due up to this day, YYYY-MM-DD"),
            min_total=number("EUR at least"),
        ),
        reading(
            "get_invoice",
            "Show an invoice with its lines, payments, reminders and credit notes.",
            "billing.invoices",
            "invoice_id",
            payments=("billing.payments", "invoice_id"),
            reminders=("billing.reminders", "invoice_id"),
            credit_notes=("billing.credit_notes", "invoice_id"),
        ),
        custom(
            "create_invoice",
            "Write an invoice as a draft.",
            Effect.WRITE,
            _invoice,
            "company_id lines due_date",
            company_id=text("the company's id"),
            lines=many(
                "what is billed",
                fields(
                    "sku quantity unit_price",
                    sku=text("the item's number"),
                    quantity=whole("how many"),
                    unit_price=number("EUR each, without tax"),
                    description=text("what the line says"),
                ),
            ),
            due_date=text("when it is due, YYYY-MM-DD"),
            reference=text("the customer's order number"),
        ),
        setting(
            "send_invoice",
            "Send a draft to the customer.",
            "billing.invoices",
            "invoice_id",
            {"status": "sent"},
            only={"status": ["draft"]},
        ),
        updating(
            "update_invoice",
            "Change due date or reference of an invoice.",
            "billing.invoices",
            "invoice_id",
            due_date=text("YYYY-MM-DD"),
            reference=text("the customer's order number"),
        ),
        custom(
            "record_payment",
            "Record money that came in for an invoice.",
            Effect.WRITE,
            _pay,
            "invoice_id amount",
            invoice_id=text("the id"),
            amount=number("EUR"),
            method=text("how", "transfer", "card", "cheque"),
        ),
        custom(
            "issue_credit_note",
            "Give back a part of an invoice, or all of it.",
            Effect.WRITE,
            _credit,
            "invoice_id amount reason",
            invoice_id=text("the id"),
            amount=number("EUR"),
            reason=text("why"),
        ),
        custom(
            "send_reminder",
            "Remind a customer of an open invoice.",
            Effect.WRITE,
            _remind,
            "invoice_id",
            invoice_id=text("the id"),
            level=whole("1 friendly, 2 firm, 3 last"),
        ),
        setting(
            "void_invoice",
            "Void an invoice as if it had never been written. Cannot be undone.",
            "billing.invoices",
            "invoice_id",
            {"status": "void"},
            effect=Effect.DESTRUCTIVE,
        ),
        setting(
            "write_off_invoice",
            "Give up an invoice that nobody will pay. Cannot be undone.",
            "billing.invoices",
            "invoice_id",
            {"status": "written_off"},
            only={"status": _OPEN},
            effect=Effect.DESTRUCTIVE,
        ),
        custom(
            "get_balance",
            "What a company owes.",
            Effect.READ,
            _balance,
            "company_id",
            company_id=text("the company's id"),
        ),
        searching(
            "list_payments",
            "List payments.",
            "billing.payments",
            "",
            invoice_id=text("only of this invoice"),
            from_date=text("from this day on, YYYY-MM-DD"),
        ),
    ),
)
SYSTEMS = (CRM, HELPDESK, BILLING)
