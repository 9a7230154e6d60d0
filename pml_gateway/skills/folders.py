"""The folders of `skills:`: which skills they hold, and what keeps others from being served."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pml_gateway.files import Signature, signature
from pml_gateway.regular_files import is_inside, read_regular
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

SKILLS = "io.modelcontextprotocol/skills"
"""The extension of the protocol by which servers offer skills."""

MAIN_FILE = "SKILL.md"

MAX_FILES = 512
MAX_BYTES = 16 * 1024**2
"""Maximum files and bytes of one skill: what every host must take, by the specification of the extension."""

MAX_MAIN_BYTES = 1024**2
"""Maximum bytes of a SKILL.md; its front matter is parsed as YAML."""

MAX_SKILLS = 500
MAX_ENTRIES = 20_000
"""Maximum skills of a configuration, and entries of its folders that are looked at: `skills: [~]` is a mistake."""

MAX_DEPTH = 12
"""Maximum depth of folders below a configured one."""

MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill: its path in URIs, its entry in `skills/list`, and its files by URI."""

    path: str
    entry: JsonObject
    files: Mapping[str, Path]
    folder: Path
    root: Path

    @property
    def uri(self) -> str:
        """Return the URI of its SKILL.md."""
        return str(self.entry["uri"])


@dataclass(frozen=True, slots=True)
class SkillFault:
    """A reason why a folder, or a file of one, is not served, and its fix."""

    where: Path
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.fix}"


@dataclass(frozen=True, slots=True)
class SkillFolders:
    """The skills and faults of the configured folders; `watched` are all folders in which a change matters."""

    skills: tuple[Skill, ...] = ()
    faults: tuple[SkillFault, ...] = ()
    watched: frozenset[Path] = frozenset()

    def digests(self) -> dict[str, str]:
        """Return the digest of each file by its URI."""
        return {file["uri"]: file["digest"] for skill in self.skills for file in skill.entry["resources"]}


class _FaultyError(Exception):
    def __init__(self, where: Path, what: str, fix: str) -> None:
        super().__init__(what)
        self.fault = SkillFault(where, what, fix)


@dataclass
class SkillReader:
    """Reads the folders again and again; files that did not change are read once."""

    roots: Sequence[Path]
    _known: dict[Path, tuple[Signature, str]] = field(default_factory=dict)

    def read(self) -> SkillFolders:
        """Return what the folders hold now. Blocking."""
        return _Reading(self._known).read(self.roots)


class _Reading:
    """One look at all folders."""

    def __init__(self, known: dict[Path, tuple[Signature, str]]) -> None:
        self._known = known
        self._skills: dict[str, Skill] = {}
        self._faults: list[SkillFault] = []
        self._watched: set[Path] = set()
        self._entries = 0

    def read(self, roots: Sequence[Path]) -> SkillFolders:
        """Return what the folders hold, with every fault."""
        for root in roots:
            try:
                self._read_root(root)
            except _FaultyError as error:
                self._faults.append(error.fault)
        for file in self._known.keys() - {file for skill in self._skills.values() for file in skill.files.values()}:
            del self._known[file]
        return SkillFolders(tuple(self._skills.values()), tuple(self._faults), frozenset(self._watched))

    def _read_root(self, written: Path) -> None:
        root = Path(os.path.realpath(written))
        if not root.is_dir():
            self._watched.add(root.parent)
            raise _FaultyError(written, "is no folder", "create it, or correct `skills`")
        for folder in self._skill_folders(root, root, 0):
            if len(self._skills) >= MAX_SKILLS:
                raise _FaultyError(written, f"holds skills beyond {MAX_SKILLS} in all", "serve fewer")
            try:
                self._add(folder, root)
            except _FaultyError as error:
                self._faults.append(error.fault)
            except (OSError, UnicodeError) as error:
                # A file that went meanwhile, or whose name is no text.
                self._faults.append(SkillFault(folder, f"cannot be read: {error}", "correct it, or remove it"))

    def _add(self, folder: Path, root: Path) -> None:
        path = root.name if folder == root else folder.relative_to(root).as_posix()
        if (other := self._skills.get(path)) is not None:
            raise _FaultyError(folder, f"is named as {other.folder}, which is served", "rename one of both")
        self._skills[path] = self._skill(path, folder, root)

    def _skill_folders(self, folder: Path, root: Path, depth: int) -> Iterator[Path]:
        """Yield the folders with a SKILL.md; what lies below one belongs to it."""
        self._watched.add(folder)
        entries = self._listed(folder, root)
        if any(entry.name == MAIN_FILE for entry in entries):
            yield folder
            return
        for entry in entries:
            path = Path(entry.path)
            if not entry.is_dir():
                continue
            if entry.is_symlink() and not self._leads_inside(path, root):
                continue
            if depth < MAX_DEPTH:
                yield from self._skill_folders(path, root, depth + 1)

    def _listed(self, folder: Path, root: Path) -> list[os.DirEntry[str]]:
        """Return the entries of a folder by name, without hidden ones."""
        try:
            with os.scandir(folder) as found:
                entries = sorted((each for each in found if not each.name.startswith(".")), key=lambda each: each.name)
        except OSError as error:
            raise _FaultyError(folder, f"cannot be read: {error.strerror}", "let this user read it") from error
        self._entries += len(entries)
        if self._entries > MAX_ENTRIES:
            raise _FaultyError(root, f"holds more than {MAX_ENTRIES} files", "name the folder of the skills themselves")
        return entries

    def _leads_inside(self, link: Path, root: Path) -> bool:
        target = os.path.realpath(link)
        if is_inside(target, root) and not is_inside(link, target):
            return True
        self._faults.append(
            SkillFault(link, f"is a link to {target}, outside of {root}", "add that folder to `skills`, or copy it")
        )
        return False

    def _skill(self, path: str, folder: Path, root: Path) -> Skill:
        frontmatter = _frontmatter(folder / MAIN_FILE, root, folder.name)
        prefix = f"skill://{quote(path)}/"
        files: dict[str, Path] = {}
        resources: list[JsonObject] = []
        size = 0
        for file in self._files(folder, root, 0):
            uri = prefix + quote(file.relative_to(folder).as_posix())
            files[uri] = file
            size += (length := file.stat().st_size)
            if len(files) > MAX_FILES:
                raise _FaultyError(folder, f"has more than {MAX_FILES} files", "move files out of the skill")
            if size > MAX_BYTES:
                raise _FaultyError(folder, f"is larger than {MAX_BYTES >> 20} MiB", "move large files out of the skill")
            resources.append({"uri": uri, "digest": self._digest(file, root), "size": length})
        entry = {"uri": prefix + MAIN_FILE, "frontmatter": frontmatter, "resources": resources}
        return Skill(path, entry, files, folder, root)

    def _files(self, within: Path, root: Path, depth: int) -> Iterator[Path]:
        self._watched.add(within)
        for entry in self._listed(within, root):
            path = Path(entry.path)
            if entry.is_symlink() and not self._leads_inside(path, root):
                continue
            if entry.is_dir():
                if depth >= MAX_DEPTH:
                    raise _FaultyError(path, f"lies deeper than {MAX_DEPTH} folders", "flatten the skill")
                yield from self._files(path, root, depth + 1)
            elif entry.is_file():
                yield path
            else:
                self._faults.append(SkillFault(path, "is no regular file", "remove it from the skill"))

    def _digest(self, file: Path, root: Path) -> str:
        now, known = signature(file), self._known.get(file)
        if known is None or known[0] != now:
            content = _content(file, root)
            self._known[file] = known = (now, f"sha256:{hashlib.sha256(content).hexdigest()}")
        return known[1]


def _content(file: Path, root: Path) -> bytes:
    try:
        return read_regular(file, MAX_BYTES + 1, within=root)
    except OSError as error:
        raise _FaultyError(file, f"cannot be read: {error.strerror}", "let this user read it") from error


def _frontmatter(file: Path, root: Path, folder_name: str) -> JsonObject:
    """Return the front matter of a SKILL.md, checked as the specification of Agent Skills says."""
    # It takes a moment to import, which configurations without skills never need.
    from fastmcp.skills import Skill as AgentSkill
    from pydantic import ValidationError

    content = _content(file, root)
    begin = f"begin it with: --- / name: {folder_name} / description: what it does and when to use it / ---"
    if len(content) > MAX_MAIN_BYTES:
        raise _FaultyError(file, f"is larger than {MAX_MAIN_BYTES >> 10} KiB", "move parts of it to files beside it")
    try:
        frontmatter: JsonObject = AgentSkill.from_files({MAIN_FILE: content}).frontmatter.root
    except ValidationError as error:
        raise _FaultyError(file, error.errors()[0]["msg"].removeprefix("Value error, "), begin) from error
    except ValueError as error:
        what = shortened(str(error).splitlines()[0], MAX_SHOWN)
        # Other programs take such text for what it means, but what is listed has to be the YAML of the file.
        is_colon = "mapping values" in what
        raise _FaultyError(file, what, "write a value with a colon in quotes" if is_colon else begin) from error
    if (name := frontmatter["name"]) != folder_name:
        raise _FaultyError(file, f"is named {name!r}, and its folder {folder_name!r}", "give both the same name")
    return frontmatter
