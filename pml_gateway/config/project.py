"""A project's `.pml.yaml`: what it may set before and after it is trusted, and the intent it suggests."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_gateway.config.document import is_there, parse
from pml_gateway.config.layers import KeyPath, Layer, Origin, dotted, leaves, nodes
from pml_gateway.config.problems import Problem, annotation_at, without_aliases
from pml_gateway.config.settings import GatewaySection
from pml_gateway.config.trust import TrustStore, read_project_file
from pml_gateway.errors import ConfigurationError
from pml_gateway.regular_files import project_files, read_regular
from pml_gateway.secrets.references import references
from pml_gateway.text import counted, suggestion
from pml_gateway.types import MODES, ExposureMode

MAX_INTENT_CHARACTERS = 500
"""Maximum length of an intent, a sentence or two; more is an attempt to write into prompts or logs."""

MAX_UNTRUSTED_BYTES = 64 * 1024
"""Maximum size of an unapproved file; reading this much takes a third of a second at every start."""

MAX_DENIED = 1_000
MAX_PATTERN_CHARACTERS = 200
MAX_NAMED_KEYS = 12
MAX_KEY_CHARACTERS = 60

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
"""Noun for an entry of servers, clients and workflows."""

_Comparison = Callable[[Any, float | None], bool]

_MODES_BY_LENGTH_OF_LIST = tuple(MODES)

MAX_BYTES = 256 * 1024
"""Maximum bytes that are read of a README or project description; further text describes something else."""

MAX_CHARACTERS = 240
"""Maximum length of a derived intent: two sentences select better than a page."""

MIN_CHARACTERS = 12
READMES = ("README.md", "README.rst", "README.txt", "README", "readme.md")

_SKIPPED = re.compile(r"^\s*(#|=|-{3}|\*{3}|!\[|\[!|<|>|\||```|\.\. |:)|^\s*$")
"""Lines of a README that are not prose: headings, rules, images, badges, HTML, quotes, tables and directives."""

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}")


@dataclass(frozen=True, slots=True)
class ProjectLayer:
    """Settings of a project file: those applied, those refused, and unknown keys."""

    path: Path
    layer: Layer
    is_trusted: bool
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


def find_project_file(directory: Path) -> Path | None:
    """Return the `.pml.yaml` of `directory` or of the closest parent up to the git root; outside git, no parent."""
    return next((found for file in project_files(directory) if is_there(found := Path(file))), None)


def is_approved(folder: Path, store: TrustStore) -> bool:
    """Return True if the project of a folder is approved as its file is now. Reads the disk."""
    file = find_project_file(folder)
    return file is not None and store.state(file) == "trusted"


def project_layer(path: Path, store: TrustStore, gateway: GatewaySection, below: Mapping[str, Any]) -> ProjectLayer:
    """Read `path` once, and let through what its trust allows.

    Args:
        path: The project file.
        store: Which contents were approved.
        gateway: The exposure without the project, which an untrusted file may only narrow.
        below: All values without the project; it may narrow what sets give, trusted or not, and never widen it.

    Raises:
        ConfigurationError: a trusted file is broken; an untrusted one is only ignored, with a warning.
    """
    try:
        content = read_project_file(path)
        is_trusted = store.is_trusted(path, content)
    except ConfigurationError as exc:
        # A refused file does not name itself twice.
        return _ignored(path, exc.message.removeprefix(str(path)).removesuffix("; not read").lstrip(": "))
    if is_trusted:
        layer, widening = _without_widening(without_aliases(parse(content, "project", path)), gateway, below)
        return ProjectLayer(path, layer, True, tuple(f"{path}: ignored {what}" for what in widening))
    if len(content) > MAX_UNTRUSTED_BYTES:
        return _ignored(path, f"not trusted, and larger than {MAX_UNTRUSTED_BYTES} bytes")
    try:
        written = without_aliases(parse(content, "project", path))
    except ConfigurationError:
        # Its words are not repeated: they could quote whatever the file, or a link in its place, contains.
        return _ignored(path, "not trusted, and not a valid YAML configuration; `pml trust project` says what is wrong")
    untrusted = _UntrustedSettings(gateway, frozenset(_section(below, "sets")))
    for key_path, value in leaves(written.values):
        untrusted.consider(key_path, value)
    layer = Layer("project", untrusted.values, untrusted.origins(written))
    return ProjectLayer(path, layer, False, untrusted.warnings(path), untrusted.problems(written))


def _ignored(path: Path, reason: str) -> ProjectLayer:
    return ProjectLayer(path, Layer("project", {}, {}), False, (f"{path}: {reason}; skipped",))


def _without_widening(
    written: Layer, gateway: GatewaySection, below: Mapping[str, Any]
) -> tuple[Layer, tuple[str, ...]]:
    """Return a trusted layer without what could widen what clients are given, and what that was."""
    values, ignored = dict(written.values), []
    for section, denial in (("sets", "exclude"), ("roles", None), ("clients", "deny")):
        entries, own = _section(values, section), _section(below, section)
        for name in entries.keys() & own.keys():
            entry = _section(entries, name)
            denials = {key: entry[key] for key in entry if key == denial}
            if entry != denials:
                adds = f"; only its `{denial}` adds to it" if denial else ""
                ignored.append(f"{section}.{name}, which your own configuration has{adds}")
            entries = {**entries, name: denials}
        if section == "clients" and own and (more := entries.keys() - own.keys()):
            # A key of its own would be another way in.
            ignored += [f"clients.{name}, as your own configuration says which clients there are" for name in more]
            entries = {name: entries[name] for name in entries.keys() & own.keys()}
        if section in values:
            values[section] = entries
    for section in ("approvals", "audit", "limits"):
        if guarded := _section(values, section).keys() & _section(below, section).keys():
            ignored += [f"{section}.{key}, which your own configuration has" for key in guarded]
            values[section] = {key: each for key, each in values[section].items() if key not in guarded}
    names = _section(values, "gateway").get("sets")
    if isinstance(names, list) and not _narrows(names, gateway):
        ignored.append(f"gateway.sets, {_WIDENS}")
        values["gateway"] = {key: each for key, each in values["gateway"].items() if key != "sets"}
    # Sets of several patterns add up.
    if gateway.sets_by_client_name and _section(_section(values, "gateway"), "sets_by_client_name"):
        ignored.append("gateway.sets_by_client_name, which your own configuration has")
        values["gateway"] = {key: each for key, each in values["gateway"].items() if key != "sets_by_client_name"}
    kept = {path for path, _ in nodes(values)}
    origins = {path: origin for path, origin in written.origins.items() if path in kept}
    return Layer(written.source, values, origins), tuple(sorted(ignored))


_WIDENS = "which does not narrow the sets of your own configuration"


def _narrows(names: Sequence[object], gateway: GatewaySection) -> bool:
    """Return True if clients see no more with these names in `gateway.sets` than with those that it has."""
    return not gateway.sets or (bool(names) and set(gateway.sets).issuperset(names))


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class _UntrustedSettings:
    """Settings of an untrusted file, sorted into allowed and refused ones; `sets` are the names that there are."""

    gateway: GatewaySection
    sets: frozenset[str]
    values: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unknown: dict[KeyPath, str] = field(default_factory=dict)
    widening: list[str] = field(default_factory=list)
    unnamed: set[str] = field(default_factory=set)

    def consider(self, path: KeyPath, value: Any) -> None:
        """Allow `value` if it is an intent or lets clients see less, else note why it is refused."""
        hybrid = self.gateway.hybrid
        match path:
            case ("gateway", "intent"):
                self._intent(path, value)
            case ("gateway", "tools_exposure"):
                self._mode(path, value)
            case ("gateway", "blacklisted_tools"):
                self._denials(path, value)
            case ("gateway", "sets"):
                self._sets(path, value)
            case ("gateway", "hybrid", "max_underlying_tools"):
                self._number(path, value, hybrid.max_underlying_tools, is_narrower=_is_count_below)
            case ("gateway", "hybrid", "max_tokens"):
                self._number(path, value, hybrid.max_tokens, is_narrower=_is_positive_count_below)
            case ("gateway", "hybrid", "semantic_threshold"):
                self._number(path, value, hybrid.semantic_threshold, is_narrower=_is_share_above)
            case _:
                self._refuse(path if path[0] == "gateway" else path[:2])

    def origins(self, written: Layer) -> dict[KeyPath, Origin]:
        """Return the origins of what was kept."""
        return {path: origin for path, _ in nodes(self.values) if (origin := written.origin(path)) is not None}

    def warnings(self, path: Path) -> tuple[str, ...]:
        """Return warnings about refused settings, with the remedy."""
        remedy = f"this file is not trusted; read it, then run `pml trust {path.parent}`"
        texts = []
        if self.refused:
            more = len(self.refused) - MAX_NAMED_KEYS
            names = ", ".join(self.refused[:MAX_NAMED_KEYS]) + (f" and {more} more" if more > 0 else "")
            texts.append(f"{path}: ignored {names}: {remedy}")
        if self.unnamed:
            texts.append(f"{path}: ignored {counted(len(self.unnamed), 'unknown key')}: {remedy}")
        texts += [f"{path}: ignored {text}: {remedy}" for text in self.widening]
        return tuple(texts)

    def problems(self, written: Layer) -> tuple[Problem, ...]:
        """Return the unknown keys, trusted or not."""
        origins = {path: written.origin(path) for path in self.unknown}
        return tuple(
            Problem(origin.location if (origin := origins[path]) else "", dotted(path), message)
            for path, message in self.unknown.items()
        )

    def _refuse(self, path: KeyPath) -> None:
        name = cleaned(dotted(path), MAX_KEY_CHARACTERS)
        # A key may be any line of the file, so that only those of settings and names are repeated.
        is_known = annotation_at(path[:1]) is not None and (
            annotation_at(path) is not None or (path[0] != "gateway" and _NAME.fullmatch(str(path[-1])) is not None)
        )
        if not is_known:
            self.unnamed.add(dotted(path))
        elif name not in self.refused:
            self.refused.append(name)

    def _set(self, path: KeyPath, value: Any) -> None:
        section = self.values
        for key in path[:-1]:
            section = section.setdefault(str(key), {})
        section[str(path[-1])] = value

    def _intent(self, path: KeyPath, value: Any) -> None:
        if not isinstance(value, str):
            self.widening.append("gateway.intent, which is no text")
        elif references(value):
            self.widening.append("gateway.intent, which refers to a secret")
        else:
            self._set(path, cleaned(value, MAX_INTENT_CHARACTERS) or None)

    def _mode(self, path: KeyPath, value: Any) -> None:
        if value not in list(ExposureMode):
            modes = [str(known) for known in ExposureMode]
            # Its words are not repeated.
            self.unknown[path] = (
                f"names no mode and was ignored; choose from {', '.join(modes)}{suggestion(value, modes)}"
            )
            return
        current = self.gateway.tools_exposure
        if current is ExposureMode.HYBRID and not self.gateway.hybrid.expose_underlying_tools:
            current = ExposureMode.META_ONLY
        asked = ExposureMode(value)
        if _MODES_BY_LENGTH_OF_LIST.index(asked) < _MODES_BY_LENGTH_OF_LIST.index(current):
            self._set(path, asked.value)
        elif asked is not self.gateway.tools_exposure:
            self.widening.append(f"gateway.tools_exposure, since {asked} lists more than {current}")

    def _number(self, path: KeyPath, value: Any, current: float | None, is_narrower: _Comparison) -> None:
        if is_narrower(value, current):
            self._set(path, value)
        elif value != current:
            allowed = "null" if current is None else current
            self.widening.append(f"{dotted(path)}, which does not narrow the configured {allowed}")

    def _sets(self, path: KeyPath, value: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.widening.append("gateway.sets, which is no list of names")
        elif not self.sets.issuperset(value):
            # Its words are not repeated.
            self.unknown[path] = "names a set that there is not and was ignored; see: pml sets list"
        elif not _narrows(value, self.gateway):
            self.widening.append(f"gateway.sets, {_WIDENS}")
        else:
            self._set(path, value)

    def _denials(self, path: KeyPath, value: Any) -> None:
        patterns = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        kept = [
            item for item in patterns if 0 < len(item) <= MAX_PATTERN_CHARACTERS and item == cleaned(item, len(item))
        ]
        if not isinstance(value, list) or len(kept) < len(value) or len(kept) > MAX_DENIED:
            self.widening.append("some entries of gateway.blacklisted_tools, which are no tool names")
        if kept:
            self._set(path, kept[:MAX_DENIED])


def _is_count_below(value: Any, current: float | None) -> bool:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return is_count and (current is None or value < current)


def _is_positive_count_below(value: Any, current: float | None) -> bool:
    return _is_count_below(value, current) and value > 0


def _is_share_above(value: Any, current: float | None) -> bool:
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return is_share and current is not None and value > current


def cleaned(text: str, limit: int) -> str:
    """Return the printable characters (no terminal escapes, bidirectional or invisible ones), up to `limit`."""
    printable = "".join(" " if unicodedata.category(character)[0] in "CZ" else character for character in text)
    return " ".join(printable.split())[:limit]


@dataclass(frozen=True, slots=True)
class DerivedIntent:
    """An intent, and the file it was read from."""

    text: str
    file: Path


def derive_intent(project: Path) -> DerivedIntent | None:
    """Return the project's description, or the first paragraph of its README, or None."""
    for file, text in _descriptions(project):
        short = _shortened(cleaned(text, MAX_INTENT_CHARACTERS * 4))
        if len(short) >= MIN_CHARACTERS:
            return DerivedIntent(short, file)
    return None


def _descriptions(project: Path) -> Iterator[tuple[Path, str]]:
    for name, keys in (
        ("pyproject.toml", (("project", "description"), ("tool", "poetry", "description"))),
        ("package.json", (("description",),)),
        ("Cargo.toml", (("package", "description"), ("workspace", "package", "description"))),
        ("composer.json", (("description",),)),
        ("deno.json", (("description",),)),
    ):
        values = _values(project / name)
        for key in keys:
            found: Any = values
            for part in key:
                found = found.get(part) if isinstance(found, dict) else None
            if isinstance(found, str):
                yield project / name, found
    for name in READMES:
        text = _text(project / name)
        if text is not None:
            yield project / name, _first_paragraph(text)
            return


def _values(file: Path) -> Mapping[str, Any]:
    text = _text(file)
    if text is None:
        return {}
    try:
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        # A broken file says nothing.
        return {}
    return values if isinstance(values, dict) else {}


def _text(file: Path) -> str | None:
    try:
        content = read_regular(file, MAX_BYTES, is_own=True)
    except OSError:
        return None
    return content.decode("utf-8", "ignore")


def _first_paragraph(text: str) -> str:
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if in_code or _SKIPPED.match(line):
            if lines and len(" ".join(lines)) >= MIN_CHARACTERS:
                break
            lines = []
            continue
        lines.append(line.strip())
    return _MARKUP.sub("", _LINK.sub(r"\1", " ".join(lines)))


def _shortened(text: str) -> str:
    """Return whole sentences up to the limit; if the first is longer, its first words."""
    if len(text) <= MAX_CHARACTERS:
        return text
    sentences = re.split(r"(?<=[.!?])\s+", text)
    kept = ""
    for sentence in sentences:
        if len(kept) + len(sentence) + 1 > MAX_CHARACTERS:
            break
        kept = f"{kept} {sentence}".strip()
    return kept or text[:MAX_CHARACTERS].rsplit(" ", 1)[0]
