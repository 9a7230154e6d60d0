"""Moves the configuration to a stage of the migration and back: exactly, or else by its own keys alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pml_gateway.config.document import parse
from pml_gateway.config.edits.edit import FileEdit, edit_file, merged, set_values
from pml_gateway.config.layers import KeyPath, Origin, dotted, leaves
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed

MAX_STEPS = 20
"""Steps that can be undone, one after the other."""


@dataclass(frozen=True, slots=True)
class StageChange:
    """One edit: which stage became which, for one client or for all, and the file's text before and after."""

    at: float
    client: str | None
    before_stage: str
    stage: str
    file: str
    before: str
    after: str
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """An undone step; `exact` is True if the file has its former content, byte for byte."""

    step: StageChange
    edit: FileEdit
    exact: bool


class Journal:
    """The steps of one configuration, kept for its owner alone since the file's text may hold secrets."""

    def __init__(self, folder: Path, config: str) -> None:
        path = folder / f"{hashlib.sha256(config.encode()).hexdigest()[:16]}.json"
        self._document = Document(kinds.MIGRATION_STEPS, path, decode=_decode, encode=_encode, empty=list[StageChange])

    def steps(self) -> list[StageChange]:
        """Return the steps, oldest first.

        Raises:
            ConfigurationError: the journal cannot be read.
        """
        return self._document.require("remove it; the configuration's own backups lie next to the file")

    def last(self, client: str | None) -> StageChange | None:
        """Return the last step of a client, or of all together."""
        return next((step for step in reversed(self.steps()) if step.client == client), None)

    def move(
        self, file: Path, values: Mapping[str, Any], *, client: str | None, before_stage: str, stage: str
    ) -> FileEdit:
        """Write a stage's values into the file, and remember how to undo that.

        Raises:
            ConfigurationError: the file cannot be edited; nothing is written then.
        """
        with self._document.locked():
            steps = self.steps()
            keys = tuple(tuple(map(str, path)) for path, _ in leaves(values))
            path = str(file.absolute())

            def change(text: str) -> str:
                after = set_values(text, values, file)
                if after != text:
                    step = StageChange(time.time(), client, before_stage, stage, path, text, after, keys)
                    self._document.write([*steps, step])
                return after

            try:
                return edit_file(file, change)
            except ConfigurationError:
                # Noted first, for a change without a note could not be undone.
                with suppress(OSError):
                    if self.steps() != steps:
                        self._document.write(steps)
                raise

    def undo(self, client: str | None, *, dry_run: bool = False) -> UndoneStep:
        """Undo the last step of a client, or of all together; with `dry_run`, only find out what that changes.

        Raises:
            GatewayError: there is none.
            ConfigurationError: the file cannot be edited; nothing is written then.
        """
        with self._document.locked():
            steps = self.steps()
            place = next((at for at in range(len(steps) - 1, -1, -1) if steps[at].client == client), None)
            if place is None:
                whose = f" of {client}" if client else ""
                raise GatewayError(f"no step{whose} to go back from", hint="pml migrate --to STAGE moves to any stage")
            step = steps.pop(place)
            edit = edit_file(Path(step.file), _undoing(step), dry_run=dry_run)
            if dry_run:
                return UndoneStep(step, edit, exact=edit.after == step.before)
            # Last: a step that stays written down is undone again, which changes nothing.
            try:
                self._document.write(steps)
            except OSError as exc:
                raise ConfigurationError(
                    f"{self._document.path} cannot be written: {exc.strerror}", hint="make room, then run it again"
                ) from exc
        return UndoneStep(step, edit, exact=edit.after == step.before)


def _decode(content: bytes) -> list[StageChange]:
    return [StageChange(**{**step, "keys": tuple(map(tuple, step["keys"]))}) for step in parsed(content)]


def _encode(steps: list[StageChange]) -> str:
    return compact([asdict(step) for step in steps[-MAX_STEPS:]])


def refuse_overruled(origins: Mapping[str, Origin], values: Mapping[str, Any]) -> None:
    """Refuse values of the configuration file that another source overrides, so that writing them changes nothing.

    Raises:
        ConfigurationError: with each place that sets one of them.
    """
    found = []
    for path, _ in leaves(values):
        origin = origins.get(dotted(path))
        if origin is not None and origin.source in ("project", "environment"):
            found.append(f"{origin.location} sets {dotted(path)}")
    if found:
        raise ConfigurationError(
            f"{'; '.join(found)}, which wins over the configuration file", hint="remove it there, then try again"
        )


def _undoing(step: StageChange) -> Callable[[str], str]:
    path = Path(step.file)

    def undo(text: str) -> str:
        if text == step.after:
            return step.before
        whole = merged(step.after, text, step.before)
        if whole is not None and _is_undone(whole, text, step, path):
            return whole
        return set_values(text, _earlier_values(step, path), path)

    return undo


def _is_undone(whole: str, text: str, step: StageChange, path: Path) -> bool:
    """Return True if only the step's keys changed."""
    try:
        found, now, before = (_leaves(each, path) for each in (whole, text, step.before))
    except ConfigurationError:
        return False
    own = set(step.keys)
    return all(found.get(key) == (before if key in own else now).get(key) for key in {*found, *now, *before})


def _earlier_values(step: StageChange, path: Path) -> dict[str, Any]:
    """Return the step's keys with their previous values, or the built-in defaults if the file had none."""
    before = _leaves(step.before, path)
    defaults: Mapping[str, Any] = Settings().model_dump(mode="json")
    tree: dict[str, Any] = {}
    for key in step.keys:
        value = before[key] if key in before else _at(defaults, key)
        node = tree
        for name in key[:-1]:
            node = node.setdefault(name, {})
        node[key[-1]] = value
    return tree


def _leaves(text: str, path: Path) -> dict[tuple[str, ...], Any]:
    found: list[tuple[KeyPath, Any]] = list(leaves(parse(text, "user", path).values))
    return {tuple(map(str, key)): value for key, value in found}


def _at(tree: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    node: Any = tree
    for name in key:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node
