"""A change that a page makes: says in words what it would do, is asked about, made, and undone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio.to_thread

from pml_gateway.console.forms import FormField
from pml_gateway.console.logins import RunningLogins
from pml_gateway.console.source import GatewaySource
from pml_gateway.secrets.masking import mask_text
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.setup.first_look import tell_gateways
from pml_gateway.text import counted


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """The checked values of a form."""

    source: GatewaySource
    values: Mapping[str, str]
    logins: RunningLogins | None = None


@dataclass(frozen=True, slots=True)
class Undo:
    """The change that takes back another, with its values."""

    change: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MadeChange:
    """A change that was made, in a line, and its undo if there is one.

    Args:
        said: the line.
        undo: takes it back.
        shown: text that came of it.
        given: values of the form, for the page to fill it in again.
        address: where a person goes on.
    """

    said: str
    undo: Undo | None = None
    shown: str = ""
    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    address: str = ""


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
        asks: False if the page with the form has shown all that is to be agreed to.
    """

    question: str
    make: Callable[[], Awaitable[MadeChange]]
    button: str = "Yes"
    diff: str = ""
    notes: Sequence[str] = ()
    made_already: str = ""
    asks: bool = True
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
        more: start of the names of further fields, which differ from form to form.
    """

    title: str
    fields: Mapping[str, FormField]
    plan: Callable[[ChangeRequest], Awaitable[PlannedChange]]
    page: str
    more: str = ""

    @property
    def secrets(self) -> frozenset[str]:
        """Return the names of fields that are or may hold credentials."""
        return frozenset(name for name, each in self.fields.items() if each.is_secret)

    def shown_again(self, form: Mapping[str, str]) -> dict[str, str]:
        """Return what was entered, to be corrected; without a passphrase, and a long text that has a credential."""
        hidden = {name for name in self.secrets if not self.fields[name].is_long or _has_credential(form.get(name, ""))}
        more = {name for name in form if self.more and name.startswith(self.more)}
        return {name: form[name] for name in (self.fields.keys() | more) & form.keys() - hidden}


def _has_credential(text: str) -> bool:
    return any(mask_text(line) != line for line in text.splitlines())


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
        if following.other_replicas:
            problems.append(f"Make the same change at {counted(following.other_replicas, 'other replica')}.")
        undo = Undo("undo", {"backup": made.backup.name}) if made.backup is not None else None
        return MadeChange(" ".join(filter(None, (said, *problems, warning))), undo)

    if not (preview.has_changed or change.values):
        already = already or "Nothing is to be changed."
        return PlannedChange(question, make, made_already=already)
    return PlannedChange(question, make, button, preview.diff, notes, basis=preview.before)
