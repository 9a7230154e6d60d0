"""The `servers:` entries of the bundled demo servers, and the sample files and notes that they work on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pml_gateway.demo.servers.notes import Notes
from pml_gateway.types import JsonObject

_PACKAGE = "pml_gateway.demo.servers"

SAMPLE_FILES: Mapping[str, str] = MappingProxyType(
    {
        "welcome.md": (
            "# Welcome\n\nThis folder belongs to the demo. Its tools read, search and change what is in here\n"
            "and nothing outside it.\n"
        ),
        "projects/garden/plan.md": (
            "# Garden plan\n\n- March: order seeds, repair the raised beds\n- April: sow carrots and spinach\n"
            "- May: plant tomatoes after the last frost\n\nTODO: ask Nora for the old watering timer\n"
        ),
        "projects/garden/costs.csv": "item,amount\nseeds,34.50\nsoil,82.00\ntimber,147.25\nwatering timer,0\n",
        "projects/website/todo.txt": "TODO: compress the photographs\nTODO: renew the certificate in June\n",
        "logs/backup.log": (
            "2026-03-01 02:00:04 backup started\n2026-03-01 02:07:31 backup finished, 18.2 GB\n"
            "2026-03-02 02:00:03 backup started\n2026-03-02 02:00:09 ERROR disk is full\n"
        ),
        "recipes/bread.md": "# Bread\n\n500 g flour, 350 g water, 10 g salt, 3 g yeast. Rest 12 hours, bake 40 min.\n",
    }
)

SAMPLE_NOTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Standup on Monday", "Demo moved to 10:30. Bring the numbers for March.", ("work", "meeting")),
    ("Gift ideas", "Nora: a book about moss. Emil: climbing chalk.", ("family", "idea")),
    ("Backup disk is full", "Order a 4 TB disk and rotate the old one out.", ("home", "todo")),
    ("Reading list", "The Mushroom at the End of the World; Seeing Like a State.", ("books",)),
)


def demo_servers(work_dir: Path) -> dict[str, JsonObject]:
    """Return the three demo servers working in a folder; create and seed it, but keep existing files."""
    folder = work_dir.resolve()
    files, notes = folder / "files", folder / "notes.sqlite3"
    _seed_files(files)
    _seed_notes(notes)
    return {
        "files": _entry(folder, "files", files),
        "notes": _entry(folder, "notes", notes),
        "calc": _entry(folder, "calc"),
    }


def _entry(folder: Path, name: str, *arguments: Path) -> JsonObject:
    # -P prevents the import of modules in the working directory.
    arguments_text = [str(argument) for argument in arguments]
    return {
        "command": sys.executable,
        "args": ["-P", "-m", f"{_PACKAGE}.{name}", *arguments_text],
        "cwd": str(folder),
    }


def _seed_files(folder: Path) -> None:
    if folder.exists():
        return
    for name, text in SAMPLE_FILES.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def _seed_notes(path: Path) -> None:
    if path.exists():
        return
    notes = Notes(path)
    for title, body, tags in SAMPLE_NOTES:
        notes.create_note(title, body, [*tags])
