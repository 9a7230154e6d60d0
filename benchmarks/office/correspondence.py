"""Mail, calendar and chat."""

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
    flag,
    many,
    reading,
    removing,
    searching,
    setting,
    text,
    updating,
    whole,
)
from pml_gateway.types import Effect

ME = "mara.lindqvist@larkfield.example"

_FOLDER = ("inbox", "sent", "drafts", "archive", "trash")


def _send(office: Office, given: Arguments) -> Any:
    if "in_reply_to" in given:
        office.record("mail.messages", given["in_reply_to"])
    return office.add("mail.messages", "M", _mail_of(given) | {"folder": "sent"})


def _mail_of(given: Arguments) -> dict[str, Any]:
    empty = {"cc": [], "unread": False, "labels": [], "date": NOW, "from": ME}
    wrong = [address for address in (*given["to"], *given.get("cc", ())) if "@" not in address]
    if wrong:
        raise RefusedError(f"not an e-mail address: {wrong[0]!r}")
    return {**empty, **given}


def _draft(office: Office, given: Arguments) -> Any:
    return office.add("mail.messages", "M", _mail_of(given) | {"folder": "drafts"})


def _label(office: Office, given: Arguments) -> Any:
    mail = office.record("mail.messages", given["message_id"])
    kept = [label for label in mail["labels"] if label not in given.get("remove", ())]
    mail["labels"] = kept + [label for label in given.get("add", ()) if label not in kept]
    return {"id": mail["id"], "labels": mail["labels"]}


_WRITTEN = {
    "to": many("e-mail addresses"),
    "subject": text("the subject"),
    "body": text("the text"),
    "cc": many("e-mail addresses of copies"),
    "in_reply_to": text("the id of the message that this answers"),
}

MAIL = System(
    "mail",
    "Mail of Mara Lindqvist (Larkfield Instruments): search, read, write and file messages.",
    (
        searching(
            "search_messages",
            "Find messages in the mailbox, without their texts. Newest are not first: look at the date.",
            "mail.messages",
            "subject body from",
            "from to subject date folder unread labels",
            folder=text("only in this folder", *_FOLDER),
            **{"from": text("the sender's address"), "unread": flag("only unread ones, or only read ones")},
            from_date=text("from this day on, YYYY-MM-DD"),
            to_date=text("up to this day, YYYY-MM-DD"),
        ),
        reading("get_message", "Read one message with its text.", "mail.messages", "message_id"),
        custom("send_message", "Send a message at once.", Effect.WRITE, _send, "to subject body", **_WRITTEN),
        custom("create_draft", "Store a message as a draft.", Effect.WRITE, _draft, "to subject body", **_WRITTEN),
        setting(
            "send_draft",
            "Send a draft as it is.",
            "mail.messages",
            "message_id",
            {"folder": "sent", "date": NOW},
            only={"folder": ["drafts"]},
        ),
        updating(
            "update_draft",
            "Replace parts of a draft.",
            "mail.messages",
            "message_id",
            to=many("e-mail addresses"),
            subject=text("the subject"),
            body=text("the whole text"),
        ),
        updating(
            "move_message",
            "Move a message into another folder. `archive` keeps it out of the inbox, `trash` for 30 days.",
            "mail.messages",
            "message_id",
            folder=text("where to", *_FOLDER),
        ),
        updating("mark_message", "Mark as read or unread.", "mail.messages", "message_id", unread=flag("true: unread")),
        custom(
            "label_message",
            "Add and remove labels of a message.",
            Effect.WRITE,
            _label,
            "message_id",
            message_id=text("the id"),
            add=many("labels to add"),
            remove=many("labels to remove"),
        ),
        removing("delete_message", "Delete a message for good; it cannot be restored.", "mail.messages", "message_id"),
    ),
)


def _free(office: Office, given: Arguments) -> Any:
    """Half hours of the working day in which none of the attendees has an event."""
    minutes, day = given["minutes"], given["date"]
    busy = [
        (event["start"], event["end"])
        for event in office.rows("calendar.events")
        if event["status"] == "confirmed" and set(event["attendees"]) & set(given["attendees"])
    ]
    found = []
    for start in range(9 * 60, 17 * 60 - minutes + 1, 30):
        begin, end = (f"{day}T{at // 60:02}:{at % 60:02}:00" for at in (start, start + minutes))
        if all(end <= first or begin >= last for first, last in busy):
            found.append({"start": begin, "end": end})
    return {"free": found}


_EVENT = {
    "title": text("the title"),
    "start": text("YYYY-MM-DDTHH:MM:SS"),
    "end": text("YYYY-MM-DDTHH:MM:SS"),
    "attendees": many("e-mail addresses of all attendees"),
    "location": text("a room or a link"),
    "description": text("an agenda"),
}

CALENDAR = System(
    "calendar",
    "The shared calendar of Larkfield Instruments. Times are local.",
    (
        searching(
            "list_events",
            "List events between two days.",
            "calendar.events",
            "title description location",
            from_start=text("from this day on, YYYY-MM-DD"),
            to_start=text("up to this day, YYYY-MM-DD"),
            attendees=text("only events with this attendee (an e-mail address)"),
            status=text("the state", "confirmed", "cancelled"),
        ),
        reading("get_event", "Show one event.", "calendar.events", "event_id"),
        creating(
            "create_event",
            "Create an event and invite its attendees.",
            "calendar.events",
            "EV",
            "title start end attendees",
            defaults={"status": "confirmed", "location": "", "description": ""},
            **_EVENT,
        ),
        updating("update_event", "Change an event; attendees are told.", "calendar.events", "event_id", **_EVENT),
        setting(
            "cancel_event",
            "Cancel an event: it stays visible as cancelled, and all attendees are told.",
            "calendar.events",
            "event_id",
            {"status": "cancelled"},
            only={"status": ["confirmed"]},
            message=text("a note to the attendees"),
        ),
        removing(
            "delete_event",
            "Erase an event from all calendars; attendees are not told.",
            "calendar.events",
            "event_id",
        ),
        custom(
            "find_free_slots",
            "Find times between 9:00 and 17:00 of one day at which all attendees are free.",
            Effect.READ,
            _free,
            "attendees date minutes",
            attendees=many("e-mail addresses"),
            date=text("the day, YYYY-MM-DD"),
            minutes=whole("how long"),
        ),
    ),
)


def _channel(office: Office, name: str) -> dict[str, Any]:
    wanted = name.removeprefix("#")
    for channel in office.rows("chat.channels"):
        if wanted in (channel["name"], channel["id"]):
            return channel
    raise RefusedError(f"there is no channel {name!r}")


def _post(office: Office, given: Arguments) -> Any:
    channel = _channel(office, given["channel"])
    if channel["archived"]:
        raise RefusedError(f"{channel['name']} is archived")
    if "thread" in given:
        office.record("chat.posts", given["thread"])
    post = {"author": "mara.lindqvist", "date": NOW, "thread": None, **given, "channel": channel["name"]}
    return office.add("chat.posts", "P", post)


def _direct(office: Office, given: Arguments) -> Any:
    user = given["user"].removeprefix("@")
    if all(each["handle"] != user for each in office.rows("people.employees")):
        raise RefusedError(f"there is no user {user!r}")
    post = {"channel": f"@{user}", "author": "mara.lindqvist", "text": given["text"], "date": NOW, "thread": None}
    return office.add("chat.posts", "P", post)


def _read_channel(office: Office, given: Arguments) -> Any:
    name = _channel(office, given["channel"])["name"]
    return {"posts": [post for post in office.rows("chat.posts") if post["channel"] == name]}


def _change_channel(office: Office, given: Arguments) -> Any:
    channel = _channel(office, given["channel"])
    channel.update({key: value for key, value in given.items() if key != "channel"})
    return dict(channel)


def _invite(office: Office, given: Arguments) -> Any:
    channel = _channel(office, given["channel"])
    channel["members"] = [*channel["members"], *(user for user in given["users"] if user not in channel["members"])]
    return dict(channel)


def _archive_channel(office: Office, given: Arguments) -> Any:
    channel = _channel(office, given["channel"])
    channel["archived"] = True
    return dict(channel)


def _delete_channel(office: Office, given: Arguments) -> Any:
    channel = _channel(office, given["channel"])
    del office.tables["chat.channels"][channel["id"]]
    gone = [post["id"] for post in office.rows("chat.posts") if post["channel"] == channel["name"]]
    for key in gone:
        del office.tables["chat.posts"][key]
    return {"deleted": channel["name"], "posts": len(gone)}


_NAME = text("the channel's name, with or without #")

CHAT = System(
    "chat",
    "The team chat of Larkfield Instruments. Users are called as their handles, firstname.lastname.",
    (
        searching("list_channels", "List channels.", "chat.channels", "name topic", archived=flag("archived ones")),
        custom(
            "read_channel",
            "Read the posts of a channel, oldest first.",
            Effect.READ,
            _read_channel,
            "channel",
            channel=_NAME,
        ),
        searching(
            "search_posts",
            "Find posts by their words.",
            "chat.posts",
            "text",
            author=text("the author's handle"),
            channel=text("the channel's name"),
        ),
        custom(
            "post_message",
            "Post into a channel, or reply to a post in its thread.",
            Effect.WRITE,
            _post,
            "channel text",
            channel=_NAME,
            text=text("what to post"),
            thread=text("the id of the post that is answered"),
        ),
        custom(
            "send_direct_message",
            "Write to one user.",
            Effect.WRITE,
            _direct,
            "user text",
            user=text("the user's handle"),
            text=text("what to write"),
        ),
        custom(
            "set_channel_topic",
            "Replace the topic of a channel.",
            Effect.WRITE,
            _change_channel,
            "channel topic",
            channel=_NAME,
            topic=text("the new topic"),
        ),
        creating(
            "create_channel",
            "Open a new channel.",
            "chat.channels",
            "C",
            "name",
            defaults={"topic": "", "members": ["mara.lindqvist"], "archived": False},
            name=text("lower case, with hyphens"),
            topic=text("what it is for"),
            members=many("handles of its members"),
        ),
        custom(
            "invite_to_channel",
            "Add users to a channel.",
            Effect.WRITE,
            _invite,
            "channel users",
            channel=_NAME,
            users=many("handles"),
        ),
        custom(
            "archive_channel",
            "Close a channel for new posts; everything in it stays readable.",
            Effect.WRITE,
            _archive_channel,
            "channel",
            channel=_NAME,
        ),
        custom(
            "delete_channel",
            "Delete a channel and all of its posts.",
            Effect.DESTRUCTIVE,
            _delete_channel,
            "channel",
            channel=_NAME,
        ),
        removing("delete_post", "Delete one post.", "chat.posts", "post_id"),
    ),
)
SYSTEMS = (MAIL, CALENDAR, CHAT)
