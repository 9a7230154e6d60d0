"""What is asked in the office, and the changes that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from benchmarks.office.correspondence import ME
from benchmarks.office.expected import Change, Has, Set, Tables, added, changed, changes, faults, removed

FREE = ("mail.messages:unread", "calendar.events:message")
"""What may change in every task: whoever reads a mail may mark it as read, and may tell attendees why."""

TODAY = "2026-11-30"


@dataclass(frozen=True, slots=True)
class OfficeTask:
    """A request in a user's words, and the changes that have to come of it: all of them, and no others."""

    name: str
    ask: str
    wanted: tuple[Change, ...]

    def faults(self, before: Tables, after: Tables) -> Sequence[str]:
        """What is wrong with the state in which the office was left."""
        return faults(self.wanted, changes(before, after), FREE)


def _on(year: int, month: int, day: int) -> tuple[str, ...]:
    """The ways in which a text may name a day."""
    at = date(year, month, day)
    long, short = f"{at:%B}", f"{at:%b}"
    suffix = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    spoken = [f"{day}{of} {month}" for of in ("", suffix, f"{suffix} of", ".") for month in (long, short)]
    turned = [f"{month} {day}" for month in (long, short)]
    return (*spoken, *turned, at.isoformat(), f"{at:%d.%m}", f"{at:%d/%m}", f"{at:%m/%d}")


def _mail(to: str, body: Has, reply_to: str | None = None) -> Change:
    answers = {"in_reply_to": reply_to} if reply_to else {}
    return added("mail.messages", folder="sent", to=[to], body=body, **answers)


def _post(channel: str, *parts: str) -> Change:
    return added("chat.posts", channel=channel, text=Has(*parts))


def _reply(ticket: str, *parts: str | tuple[str, ...]) -> Change:
    return added("helpdesk.comments", ticket_id=ticket, kind="reply", text=Has(*parts))


def _at(name: str) -> str:
    return f"{name}@larkfield.example"


_MAIL_AND_CUSTOMERS = (
    OfficeTask(
        "new phone number",
        "Peter Hall of Halden Pharma Nordic sent me his new phone number by mail. Put it into the CRM.",
        (changed("crm.contacts", "CON-3", phone=Has("555 0199")),),
    ),
    OfficeTask(
        "offer accepted",
        "Tessel Robotics has accepted our offer by mail. Mark the deal as won, closed today, and tell the colleague "
        "whose deal it is in a direct message in the chat, with the amount.",
        (
            changed("crm.deals", "DEAL-1", stage="won", close_date=TODAY),
            _post("@jonas.weber", "18400"),
        ),
    ),
    OfficeTask(
        "delivery date",
        "Reply to Ines Carvalho's mail: she asks when her order arrives. The date is in a file about deliveries, on "
        "the drive.",
        (_mail("ines.carvalho@northgate.example", Has(_on(2026, 12, 11)), "M-1"),),
    ),
    OfficeTask(
        "newsletters",
        "File all LabWorld newsletters that lie in my inbox in the archive folder.",
        (
            changed("mail.messages", "M-4", folder="archive"),
            changed("mail.messages", "M-5", folder="archive"),
        ),
    ),
    OfficeTask(
        "billed too much",
        "Dana Okafor has written that an invoice is wrong. Give back what we billed too much with a credit note, and "
        "reply to her mail with the amount.",
        (
            added("billing.credit_notes", invoice_id="INV-2044", amount=290),
            _mail("dana.okafor@cedarclinics.example", Has("290"), "M-7"),
        ),
    ),
    OfficeTask(
        "reservation by mail",
        "Reserve what Leo Brandt asks for in his mail, all in one warehouse that has enough of it free. Then reply to "
        "his mail that it is reserved.",
        (
            changed("stock.levels", "PH-200@north", reserved=54),
            added("stock.reservations", sku="PH-200", warehouse="north", quantity=40, company_id="CMP-6"),
            _mail("leo.brandt@orbisfoods.example", Has("reserved"), "M-8"),
        ),
    ),
    OfficeTask(
        "contact twice",
        "Ruth Amsel is in the CRM twice. Make one contact of the two, and keep the one with her whole first name.",
        (
            removed("crm.contacts", "CON-5"),
            changed("crm.contacts", "CON-4", phone="+44 117 555 0177"),
            changed("crm.deals", "DEAL-5", contact_id="CON-4"),
            changed("crm.activities", "ACT-1", contact_id="CON-4"),
        ),
    ),
    OfficeTask(
        "a draft that waits",
        "My mail to Ruth Amsel about maintenance is still a draft. We come a week later than it says, in the week of "
        "14 December: correct that in it and send it.",
        (
            changed(
                "mail.messages",
                "M-12",
                folder="sent",
                body=Has(_on(2026, 12, 14), without=(" 7 December",)),
                date="2026-11-30T09:00:00",
            ),
        ),
    ),
    OfficeTask(
        "budget compared",
        "Reply to Anna Schmidt's mail about the budget: by how much does the budget of operations grow from 2026 to "
        "the draft for 2027?",
        (_mail(_at("anna.schmidt"), Has(("15000", "15k")), "M-6"),),
    ),
    OfficeTask(
        "a call from Uppsala",
        "Grace Odum has just phoned: Alder University takes the spectrometers. Log the call, set the deal to won as of "
        "today, and make the university a customer.",
        (
            added("crm.activities", contact_id="CON-9", kind="call"),
            changed("crm.deals", "DEAL-2", stage="won", close_date=TODAY),
            changed("crm.companies", "CMP-8", status="customer"),
        ),
    ),
    OfficeTask(
        "deals that are late",
        "Set the closing date of my own quoted deals that should have been closed before today to 15 January 2027. "
        "Leave the deals of others alone.",
        (changed("crm.deals", "DEAL-2", close_date="2027-01-15"),),
    ),
    OfficeTask(
        "moved house",
        "Halden Pharma has moved within Basel: from number 9 to number 90 in the same street. Correct the address.",
        (changed("crm.companies", "CMP-2", address="Rheinweg 90, Basel"),),
    ),
    OfficeTask(
        "a lost customer",
        "Fenwick Mining is gone for good. Free what we have reserved for them, give up their overdue invoice, and set "
        "their deal to lost.",
        (
            removed("stock.reservations", "RES-4"),
            changed("stock.levels", "TS-1@south", reserved=0),
            changed("billing.invoices", "INV-2046", status="written_off"),
            changed("crm.deals", "DEAL-7", stage="lost"),
        ),
    ),
)

_MONEY = (
    OfficeTask(
        "reminders by the rules",
        "Send reminders for our overdue invoices, following the reminder rules in the handbook to the letter.",
        (
            added("billing.reminders", invoice_id="INV-2041", level=2),
            added("billing.reminders", invoice_id="INV-2042", level=1),
            added("billing.reminders", invoice_id="INV-2046", level=1),
        ),
    ),
    OfficeTask(
        "bank statement",
        "Record the payments of today's bank file (it is in the finance folder of the drive) by their reference. If a "
        "line fits no invoice, mail its reference to Anna Schmidt in finance.",
        (
            added("billing.payments", invoice_id="INV-2045", amount=750),
            added("billing.payments", invoice_id="INV-2042", amount=900),
            added("billing.payments", invoice_id="INV-2044", amount=1740),
            changed("billing.invoices", "INV-2045", paid=1250, status="paid"),
            changed("billing.invoices", "INV-2042", paid=900),
            changed("billing.invoices", "INV-2044", paid=1740, status="paid"),
            _mail(_at("anna.schmidt"), Has("XX-1")),
        ),
    ),
    OfficeTask(
        "billed twice",
        "Brightwater was billed twice for order BW-301. Void the invoice with the higher number, and post in the "
        "finance channel which one you voided.",
        (changed("billing.invoices", "INV-2049", status="void"), _post("finance", "INV-2049")),
    ),
    OfficeTask(
        "invoice goes out",
        "The draft invoice for Northgate Labs can be sent, but make it due on 15 January 2027 first.",
        (changed("billing.invoices", "INV-2047", status="sent", due_date="2027-01-15"),),
    ),
    OfficeTask(
        "new invoice",
        "Bill Orbis Foods for 40 pieces of PH-200 at the price that the stock system has, under their order number "
        "OF-9, due on 30 December 2026, and send the invoice.",
        (
            added(
                "billing.invoices",
                company_id="CMP-6",
                lines=[{"sku": "PH-200", "quantity": 40, "unit_price": 120}],
                due_date="2026-12-30",
                reference="OF-9",
                status="sent",
                total=4800,
            ),
        ),
    ),
    OfficeTask(
        "a new quote",
        "Alder University now wants 4 spectrometers instead of 3. Write a new quote file next to the one of November, "
        "/sales/quotes/alder-university-2026-12.txt, with the new number and sum at the same price each. Leave the "
        "old one as it is.",
        (
            added(
                "drive.files",
                path="/sales/quotes/alder-university-2026-12.txt",
                content=Has(("4 ", "4x", "4×", "four"), "SP-10", "18000"),
            ),
        ),
    ),
)

_SUPPORT = (
    OfficeTask(
        "tickets twice",
        "Ines Carvalho has two tickets about the same login problem. Merge the newer one into the older one, and give "
        "that to Hana Kimura with high priority.",
        (
            changed("helpdesk.tickets", "TCK-3", status="closed", merged_into="TCK-2"),
            changed("helpdesk.tickets", "TCK-2", priority="high", assignee=_at("hana.kimura")),
        ),
    ),
    OfficeTask(
        "tickets of a leaver",
        "Marc Dubois has left us. Give all tickets that he still has to Jonas in support.",
        tuple(
            changed("helpdesk.tickets", ticket, assignee=_at("jonas.weiss")) for ticket in ("TCK-2", "TCK-6", "TCK-12")
        ),
    ),
    OfficeTask(
        "shares of a leaver",
        "Marc Dubois has left us. Stop sharing files on the drive with him; all others keep their access.",
        (
            changed("drive.files", "F-4", shared_with=[{"email": "yuki.tanaka@tessel.example", "role": "viewer"}]),
            changed("drive.files", "F-8", shared_with=[]),
            changed("drive.files", "F-10", shared_with=[{"email": _at("lena.fischer"), "role": "editor"}]),
        ),
    ),
    OfficeTask(
        "urgent ticket",
        "Give Cedar Clinics' new ticket the priority that our rules in the handbook demand, assign it to whoever is on "
        "call this week, and post its number in the support channel.",
        (
            changed("helpdesk.tickets", "TCK-1", priority="urgent", assignee=_at("hana.kimura")),
            _post("support", "TCK-1"),
        ),
    ),
    OfficeTask(
        "spam",
        "There is a ticket that only advertises lamps. Close it without an answer.",
        (changed("helpdesk.tickets", "TCK-9", status="closed"),),
    ),
    OfficeTask(
        "certificate",
        "Peter Hall of Halden Pharma waits in a ticket for a calibration certificate. Share the file with him for "
        "viewing, reply in the ticket with the certificate's number, and set the ticket to solved.",
        (
            changed("drive.files", "F-5", shared_with=[{"email": "peter.hall@halden.example", "role": "viewer"}]),
            _reply("TCK-4", "CERT-90817"),
            changed("helpdesk.tickets", "TCK-4", status="solved"),
        ),
    ),
    OfficeTask(
        "news for those who wait",
        "Tell every customer with an open ticket about drift, in the ticket, that firmware 4.1.1 with the fix comes on "
        "4 December.",
        (
            _reply("TCK-5", "4.1.1", _on(2026, 12, 4)),
            _reply("TCK-6", "4.1.1", _on(2026, 12, 4)),
        ),
    ),
    OfficeTask(
        "ticket becomes an issue",
        "Sam Porter's ticket about the empty export needs a developer: open an issue of high priority for the customer "
        "portal, name the ticket in its description, assign it to the colleague who built the export, and write the "
        "issue's number into an internal note of the ticket.",
        (
            added(
                "tracker.issues",
                project="WEB",
                priority="high",
                assignee="oluwaseun.adeyemi",
                description=Has("TCK-10"),
            ),
            added("helpdesk.comments", ticket_id="TCK-10", kind="note", text=Has("ISS-901")),
        ),
    ),
    OfficeTask(
        "a spare part",
        "Grace Odum needs a new battery door (her ticket says where to send it). Reserve one for her in the warehouse "
        "that has more of them, tag the ticket with `shipping`, and set it to pending.",
        (
            changed("stock.levels", "SP-DOOR@north", reserved=1),
            added("stock.reservations", sku="SP-DOOR", warehouse="north", quantity=1, company_id="CMP-8"),
            changed("helpdesk.tickets", "TCK-8", status="pending", tags=["hardware", "shipping"]),
        ),
    ),
    OfficeTask(
        "known faults",
        "Add to the handbook's page of known faults that since firmware 4.1 pH probes drift, with the number of the "
        "issue on which Wei works. What is on the page must stay.",
        (changed("wiki.pages", "PG-6", body=Has("4.0: display flickers", "4.1", "drift", "ISS-12")),),
    ),
)

_TIME_AND_PEOPLE = (
    OfficeTask(
        "one to one moves",
        "Move my one to one with Priya to Thursday of this week, as early as both of us are free between 9 and 17. It "
        "stays as long as it is.",
        (changed("calendar.events", "EV-3", start="2026-12-03T09:00:00", end="2026-12-03T09:30:00"),),
    ),
    OfficeTask(
        "no lunch",
        "Friday's team lunch does not take place. Call it off so that all attendees are told.",
        (changed("calendar.events", "EV-6", status="cancelled"),),
    ),
    OfficeTask(
        "a meeting about drift",
        "Set up a meeting of one hour, titled `Drift of pH probes`, with Tomás Rivera, Priya and me on Wednesday "
        "2 December: the first hour after 10 o'clock in which all of us are free, starting at a full or half hour.",
        (
            added(
                "calendar.events",
                title=Has("drift of ph probes"),
                start="2026-12-02T11:30:00",
                end="2026-12-02T12:30:00",
                attendees=Set(ME, _at("priya.nair"), _at("tomas.rivera")),
            ),
        ),
    ),
    OfficeTask(
        "one more at the weekly",
        "Karin Holm from the warehouse joins our weekly operations meeting from now on. Add her to all coming ones.",
        tuple(
            changed(
                "calendar.events",
                event,
                attendees=Set(ME, _at("priya.nair"), _at("anna.schmitt"), _at("karin.holm")),
            )
            for event in ("EV-1", "EV-8")
        ),
    ),
    OfficeTask(
        "first day",
        "Samir Haddad starts tomorrow, and I am his manager. Get his first day ready as the handbook's checklist says.",
        (
            added("people.equipment", employee_id="E-115", item=Has("laptop")),
            added("people.equipment", employee_id="E-115", item=Has("badge")),
            _post("general", "Samir"),
            added(
                "calendar.events",
                start="2026-12-01T10:00:00",
                end="2026-12-01T11:00:00",
                attendees=Set(ME, _at("samir.haddad")),
            ),
        ),
    ),
    OfficeTask(
        "Christmas",
        "Only one of the two colleagues in the warehouse can be away at Christmas. Approve Anna's vacation, and reject "
        "Karin's with the reason.",
        (
            changed("people.absences", "ABS-1", status="approved"),
            changed("people.absences", "ABS-2", status="rejected", comment=Has()),
        ),
    ),
    OfficeTask(
        "training",
        "Jonas from support has asked for a training day. Approve it if he has no event in the calendar on that day, "
        "else reject it with the reason.",
        (changed("people.absences", "ABS-4", status="approved"),),
    ),
    OfficeTask(
        "ill",
        "Anna Schmitt is ill today and tomorrow: enter that. Karin Holm takes her place in Friday's call with the "
        "supplier.",
        (
            added("people.absences", employee_id="E-107", kind="sick", start=TODAY, end="2026-12-01"),
            changed("calendar.events", "EV-5", attendees=Set(ME, _at("karin.holm"))),
        ),
    ),
    OfficeTask(
        "a move within the house",
        "Wei Chen, the designer, moves to room Birch 7 and now reports to Lena Fischer. Update our records.",
        (changed("people.employees", "E-109", room="Birch 7", manager_id="E-110"),),
    ),
)

_ENGINEERING = (
    OfficeTask(
        "merge what is ready",
        "Merge the firmware pull requests that are approved and whose checks have passed, by squashing, and set the "
        "issues that their titles name to done.",
        (
            changed("forge.pulls", "PR-31", state="merged", method="squash"),
            changed("tracker.issues", "ISS-12", state="done"),
        ),
    ),
    OfficeTask(
        "a dead end",
        "Wei has commented that one of his firmware pull requests leads nowhere. Close it, and delete its branch.",
        (changed("forge.pulls", "PR-32", state="closed"), removed("forge.branches", "BR-3")),
    ),
    OfficeTask(
        "old branches",
        "Clean up the portal repository: delete the branches that are merged already, and no others.",
        (removed("forge.branches", "BR-7"), removed("forge.branches", "BR-10")),
    ),
    OfficeTask(
        "licence dates",
        "Approve and merge the pull request about licence dates in the portal, set its issue to done, and reply in the "
        "older one of Ines Carvalho's two login tickets that the fault is mended.",
        (
            changed("forge.pulls", "PR-33", approvals=["mara.lindqvist"], state="merged", method=Has()),
            changed("tracker.issues", "ISS-16", state="done"),
            _reply("TCK-2"),
        ),
    ),
    OfficeTask(
        "nightly run",
        "The portal's nightly pipeline run has failed. Start it again, but none of the other failed runs.",
        (changed("forge.runs", "RUN-3", status="running"),),
    ),
    OfficeTask(
        "release",
        "Publish release 4.1.1 of the firmware; its notes must name ISS-12. Then change the topic of the channel about "
        "4.2 to `Firmware 4.2 (4.1.1 is out)`.",
        (
            added("forge.releases", repository="firmware", version=("4.1.1"), notes=Has("ISS-12")),
            changed("chat.channels", "C-5", topic="Firmware 4.2 (4.1.1 is out)"),
        ),
    ),
    OfficeTask(
        "a channel ends",
        "Firmware 4.1 is released. Post in its channel that we go on in #release-4-2, and close the channel so that "
        "what was said in it can still be read.",
        (_post("release-4-1", "release-4-2"), changed("chat.channels", "C-4", archived=True)),
    ),
    OfficeTask(
        "too much for the sprint",
        "Move the issues of the active sprint that nobody has begun (`todo`) and that are estimated at 5 points or more"
        " to the next sprint.",
        (
            changed("tracker.issues", "ISS-18", sprint_id="SPR-3"),
            changed("tracker.issues", "ISS-19", sprint_id="SPR-3"),
        ),
    ),
    OfficeTask(
        "issue twice",
        "The firmware issue about drift in the backlog is the same as the one on which Wei works. Link it as a "
        "duplicate of that one, and set it to won't do.",
        (
            added("tracker.links", issue_id="ISS-14", other_id="ISS-12", kind="duplicates"),
            changed("tracker.issues", "ISS-14", state="wont_do"),
        ),
    ),
)

_HOUSE = (
    OfficeTask(
        "returns",
        "In the handbook there are two pages about returns. Take the old one out without losing it, and put the "
        "current one below Support.",
        (changed("wiki.pages", "PG-5", status="archived"), changed("wiki.pages", "PG-4", parent_id="PG-3")),
    ),
    OfficeTask(
        "suppliers",
        "Finish the draft page about suppliers in the handbook: its text lists every supplier of ours with the e-mail "
        "address, its title is `Suppliers`, and it belongs below Operations.",
        (
            changed(
                "wiki.pages",
                "PG-11",
                title="Suppliers",
                parent_id="PG-2",
                body=Has(
                    *("Glassworks Jena", "orders@glassworks.example", "Voltera Cables", "sales@voltera.example"),
                    *("Oxytron", "office@oxytron.example"),
                ),
            ),
        ),
    ),
    OfficeTask(
        "counted",
        "The warehouse north was counted in November; the file is on the drive. Correct the stock levels to what was "
        "counted, with the reason `count`.",
        (
            changed("stock.levels", "PH-200@north", on_hand=62),
            changed("stock.levels", "CB-5@north", on_hand=212),
            added("stock.movements", sku="PH-200", warehouse="north", change=-4),
            added("stock.movements", sku="CB-5", warehouse="north", change=2),
        ),
    ),
    OfficeTask(
        "order what is short",
        "Order the items that are short, as the handbook's page about reordering says.",
        (
            added("stock.orders", supplier_id="SUP-3", lines=[{"sku": "OX-3", "quantity": 80}]),
            added("stock.orders", supplier_id="SUP-2", lines=[{"sku": "CB-10", "quantity": 120}]),
        ),
    ),
    OfficeTask(
        "a parcel",
        "Anna has posted in the warehouse channel that a parcel has come. Book it into the warehouse south, and reply "
        "to her post in its thread that it is booked.",
        (
            changed("stock.orders", "PUR-31", status="received"),
            changed("stock.levels", "PH-200@south", on_hand=90),
            added("chat.posts", channel="warehouse", thread="P-2"),
        ),
    ),
    OfficeTask(
        "end of a model",
        "We stop selling the old pH probe. Book out the pieces that are left (they are scrapped), then discontinue it.",
        (
            changed("stock.levels", "PH-100@north", on_hand=0),
            added("stock.movements", sku="PH-100", warehouse="north", change=-3),
            changed("stock.items", "PH-100", status="discontinued"),
        ),
    ),
    OfficeTask(
        "cables for the south",
        "The warehouse south should have 60 pieces of the 5 m cable. Bring what is missing from the north.",
        (
            changed("stock.levels", "CB-5@north", on_hand=165),
            changed("stock.levels", "CB-5@south", on_hand=60),
        ),
    ),
)

TASKS = (*_MAIL_AND_CUSTOMERS, *_MONEY, *_SUPPORT, *_TIME_AND_PEOPLE, *_ENGINEERING, *_HOUSE)
