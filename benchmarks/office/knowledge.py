"""The wiki and the drive."""

from __future__ import annotations

from typing import Any

from benchmarks.office.system import (
    Arguments,
    Office,
    RefusedError,
    System,
    creating,
    custom,
    flag,
    reading,
    removing,
    searching,
    setting,
    text,
    updating,
)
from pml_gateway.types import Effect


def _append(office: Office, given: Arguments) -> Any:
    page = office.record("wiki.pages", given["page_id"])
    page["body"] = f"{page['body']}\n{given['text']}"
    return dict(page)


WIKI = System(
    "wiki",
    "The handbook of Larkfield Instruments: pages with a parent.",
    (
        searching(
            "search_pages",
            "Find pages, without their texts.",
            "wiki.pages",
            "title body",
            "title parent_id status owner updated",
            parent_id=text("only below this page"),
            status=text("the state", "current", "archived"),
            to_updated=text("last changed up to this day, YYYY-MM-DD"),
        ),
        reading(
            "get_page",
            "Read a page, with those below it.",
            "wiki.pages",
            "page_id",
            children=("wiki.pages", "parent_id"),
        ),
        creating(
            "create_page",
            "Add a page.",
            "wiki.pages",
            "PG",
            "title body parent_id",
            defaults={"status": "current", "owner": "mara.lindqvist", "updated": "2026-11-30"},
            links={"parent_id": "wiki.pages"},
            title=text("the title"),
            body=text("the text, Markdown"),
            parent_id=text("the page above it"),
        ),
        updating(
            "update_page",
            "Replace title or the whole text of a page. The old text is lost: use append_to_page to add.",
            "wiki.pages",
            "page_id",
            title=text("the new title"),
            body=text("the whole new text"),
        ),
        custom(
            "append_to_page",
            "Add a line or more at the end of a page.",
            Effect.WRITE,
            _append,
            "page_id text",
            page_id=text("the id"),
            text=text("what is added"),
        ),
        updating(
            "move_page",
            "Put a page below another.",
            "wiki.pages",
            "page_id",
            links={"parent_id": "wiki.pages"},
            parent_id=text("the new page above it"),
        ),
        setting(
            "archive_page",
            "Take a page out of the handbook; it can still be read.",
            "wiki.pages",
            "page_id",
            {"status": "archived"},
        ),
        removing("delete_page", "Delete a page with its history.", "wiki.pages", "page_id"),
    ),
)


def _at(office: Office, path: str) -> dict[str, Any]:
    for file in office.rows("drive.files"):
        if file["path"] == path:
            return file
    raise RefusedError(f"there is no file {path!r}")


def _list(office: Office, given: Arguments) -> Any:
    folder = given["folder"].rstrip("/") + "/"
    inside = [file for file in office.rows("drive.files") if file["path"].startswith(folder)]
    names = {file["path"].removeprefix(folder).partition("/") for file in inside}
    return {"folder": folder, "entries": sorted(name + slash for name, slash, _ in names)}


def _read(office: Office, given: Arguments) -> Any:
    return dict(_at(office, given["path"]))


def _write(office: Office, given: Arguments) -> Any:
    for file in office.rows("drive.files"):
        if file["path"] == given["path"]:
            file["content"] = given["content"]
            return {"path": file["path"], "replaced": True}
    office.add(
        "drive.files", "F", {"path": given["path"], "content": given["content"], "shared_with": [], "trashed": False}
    )
    return {"path": given["path"], "replaced": False}


def _copy(office: Office, given: Arguments) -> Any:
    file = _at(office, given["source"])
    _must_be_free(office, given["destination"])
    copied = {"path": given["destination"], "content": file["content"], "shared_with": [], "trashed": False}
    office.add("drive.files", "F", copied)
    return {"path": given["destination"]}


def _move(office: Office, given: Arguments) -> Any:
    file = _at(office, given["source"])
    _must_be_free(office, given["destination"])
    file["path"] = given["destination"]
    return {"path": given["destination"]}


def _must_be_free(office: Office, path: str) -> None:
    if any(file["path"] == path for file in office.rows("drive.files")):
        raise RefusedError(f"there is a file {path!r} already")


def _share(office: Office, given: Arguments) -> Any:
    file = _at(office, given["path"])
    others = [share for share in file["shared_with"] if share["email"] != given["email"]]
    file["shared_with"] = [*others, {"email": given["email"], "role": given["role"]}]
    return dict(file)


def _unshare(office: Office, given: Arguments) -> Any:
    file = _at(office, given["path"])
    kept = [share for share in file["shared_with"] if share["email"] != given["email"]]
    if len(kept) == len(file["shared_with"]):
        raise RefusedError(f"{given['path']} is not shared with {given['email']}")
    file["shared_with"] = kept
    return dict(file)


def _trash(office: Office, given: Arguments) -> Any:
    file = _at(office, given["path"])
    file["trashed"] = True
    return {"path": file["path"], "trashed": True}


def _erase(office: Office, given: Arguments) -> Any:
    file = _at(office, given["path"])
    del office.tables["drive.files"][file["id"]]
    return {"path": file["path"], "erased": True}


_PATH = text("the whole path, as /finance/budget.txt")

DRIVE = System(
    "drive",
    "The shared drive of Larkfield Instruments. Paths begin with a slash.",
    (
        custom("list_folder", "List a folder.", Effect.READ, _list, "folder", folder=text("the path, / for the top")),
        searching(
            "search_files",
            "Find files by words in path or text.",
            "drive.files",
            "path content",
            "path shared_with trashed",
            trashed=flag("those in the trash"),
        ),
        custom("read_file", "Read a text file and who it is shared with.", Effect.READ, _read, "path", path=_PATH),
        custom(
            "write_file",
            "Write a text file, replacing what it held.",
            Effect.WRITE,
            _write,
            "path content",
            path=_PATH,
            content=text("the whole text"),
        ),
        custom(
            "copy_file",
            "Copy a file.",
            Effect.WRITE,
            _copy,
            "source destination",
            source=_PATH,
            destination=text("the path of the copy"),
        ),
        custom(
            "move_file",
            "Move or rename a file.",
            Effect.WRITE,
            _move,
            "source destination",
            source=_PATH,
            destination=text("the new path"),
        ),
        custom(
            "share_file",
            "Share a file with somebody, or change their role.",
            Effect.WRITE,
            _share,
            "path email role",
            path=_PATH,
            email=text("the e-mail address"),
            role=text("what they may do", "viewer", "commenter", "editor"),
        ),
        custom(
            "revoke_share",
            "Stop sharing a file with somebody.",
            Effect.WRITE,
            _unshare,
            "path email",
            path=_PATH,
            email=text("the e-mail address"),
        ),
        custom("trash_file", "Put a file into the trash, for 30 days.", Effect.WRITE, _trash, "path", path=_PATH),
        custom("delete_file", "Delete a file at once and for good.", Effect.DESTRUCTIVE, _erase, "path", path=_PATH),
    ),
    declares_effects=False,
)
SYSTEMS = (WIKI, DRIVE)
