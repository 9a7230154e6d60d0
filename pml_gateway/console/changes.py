"""The changes that pages make: each says in words what it would do, and does it as its command does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio.to_thread

from pml_gateway.config.edits.edit import file_backups
from pml_gateway.config.load import load_user_settings
from pml_gateway.console.forms import FormField
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import UsageError
from pml_gateway.gateway.approvals import ApprovalScope
from pml_gateway.owner.approvals import ApprovalAnswer, answered_approval
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.first_look import tell_gateways
from pml_gateway.setup.servers import last_manifest, switched_servers, switching


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """The checked values of a form."""

    source: GatewaySource
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Undo:
    """The change that takes back another, with its values."""

    change: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MadeChange:
    """A change that was made, in a line, and its undo if there is one."""

    said: str
    undo: Undo | None = None


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change before it is made.

    Args:
        question: what would be done, in words.
        make: makes it; raises `ChangedMeanwhileError` if it is no longer what was planned.
        button: the word for yes.
        diff: change of a file.
        notes: further sentences.
        made_already: what to say if there is nothing to do.
    """

    question: str
    make: Callable[[], Awaitable[MadeChange]]
    button: str = "Yes"
    diff: str = ""
    notes: Sequence[str] = ()
    made_already: str = ""
    basis: str = field(default="", repr=False)
    """Text that the change is made from, which a confirmation is bound to."""

    @property
    def digest(self) -> str:
        """Return a text that differs if anything does that a person agrees to."""
        shown = json.dumps([self.question, self.diff, *self.notes, self.basis])
        return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class PageChange:
    """A change that a form of a page asks for.

    Args:
        title: the heading of its page.
        fields: the fields of its form.
        plan: returns what it would do; raises `GatewayError` if it cannot be done.
        page: the page to return to if the form names none.
        asks: False if the page with the form shows already all that is to be agreed to.
    """

    title: str
    fields: Mapping[str, FormField]
    plan: Callable[[ChangeRequest], Awaitable[PlannedChange]]
    page: str
    asks: bool = True


async def planned_edit(
    change: ConfigurationChange, question: str, said: str, *, button: str, notes: Sequence[str] = (), already: str = ""
) -> PlannedChange:
    """Return a change of the configuration with its diff; undone by restoring the backup, as `pml backups` does."""
    preview = await anyio.to_thread.run_sync(change.preview)

    async def make() -> MadeChange:
        made = await anyio.to_thread.run_sync(change.write, preview)
        following = await tell_gateways(change.paths)
        warning = await anyio.to_thread.run_sync(change.conclude)
        problems = [f"A running gateway does not follow: {each}." for each in following.problems]
        undo = Undo("undo", {"backup": made.backup.name}) if made.backup is not None else None
        return MadeChange(" ".join(filter(None, (said, *problems, warning))), undo)

    if not (preview.has_changed or change.values):
        already = already or "Nothing is to be changed."
        return PlannedChange(question, make, made_already=already)
    return PlannedChange(question, make, button, preview.diff, notes, basis=preview.before)


async def _enable(request: ChangeRequest) -> PlannedChange:
    return await _switch(request, is_on=True)


async def _disable(request: ChangeRequest) -> PlannedChange:
    return await _switch(request, is_on=False)


async def _switch(request: ChangeRequest, *, is_on: bool) -> PlannedChange:
    """Plan to enable or disable a server, or one tool of it as SERVER:TOOL."""
    paths, name = request.source.paths, request.values["name"]

    def planned() -> ConfigurationChange:
        settings = load_user_settings(paths)
        named = switched_servers(settings, [name], last_manifest(paths, settings))
        return switching(paths, settings, named, is_on=is_on)

    change = await anyio.to_thread.run_sync(planned)
    word = "Enable" if is_on else "Disable"
    return await planned_edit(
        change,
        f"{word} {name}?",
        f"{name} is {word.lower()}d.",
        button=word,
        already=f"{name} is {word.lower()}d already.",
    )


async def _undo(request: ChangeRequest) -> PlannedChange:
    """Plan to restore a backup of the configuration, as `pml backups restore` does."""
    paths, name = request.source.paths, request.values["backup"]

    def text() -> str:
        found = next((each for each in file_backups(paths.config_file) if each.name == name), None)
        if found is None:
            raise UsageError(f"no backup {name!r}", hint="pml backups lists them")
        return found.read_bytes().decode()

    before = await anyio.to_thread.run_sync(text)
    change = ConfigurationChange(paths, lambda _: before)
    return await planned_edit(change, "Put the configuration back as it was?", "That is undone.", button="Undo")


async def _approve(request: ChangeRequest) -> PlannedChange:
    return await _answer(request, "approve")


async def _deny(request: ChangeRequest) -> PlannedChange:
    return await _answer(request, "deny")


async def _answer(request: ChangeRequest, answer: ApprovalAnswer) -> PlannedChange:
    """Plan to answer an approval. Its calls are shown where it is asked for, and never change."""
    source, values = request.source, request.values
    id_ = values["id"]

    async def make() -> MadeChange:
        scope, passphrase = values.get("scope") or ApprovalScope.CALL.value, values.get("passphrase", "")
        row = await answered_approval(source.paths, id_, answer, scope, passphrase)
        tools = ", ".join(dict.fromkeys(call["tool"] for call in row["calls"]))
        undo = Undo("deny", {"id": id_}) if answer == "approve" else None
        return MadeChange(f"{tools}: {row['state']}.", undo)

    return PlannedChange(f"{answer.capitalize()} {id_}?", make, answer.capitalize())


SERVER_OR_TOOL = {"name": FormField()}

CHANGES: Mapping[str, PageChange] = {
    "enable": PageChange("Enable", SERVER_OR_TOOL, _enable, "servers"),
    "disable": PageChange("Disable", SERVER_OR_TOOL, _disable, "servers"),
    "undo": PageChange("Undo", {"backup": FormField()}, _undo, "overview"),
    "approve": PageChange(
        "Approve",
        {
            "id": FormField(),
            "scope": FormField(choices=tuple(each.value for each in ApprovalScope)),
            "passphrase": FormField("Passphrase", is_required=False, is_secret=True),
        },
        _approve,
        "waiting",
        asks=False,
    ),
    "deny": PageChange("Deny", {"id": FormField()}, _deny, "waiting", asks=False),
}
"""The changes by the name in their path."""
