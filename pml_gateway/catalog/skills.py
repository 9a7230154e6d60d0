"""Skills in the catalog: what the front matter of a SKILL.md says, and the files beside it."""

from __future__ import annotations

from collections.abc import Sequence

from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.catalog.prompts_and_resources import Offer
from pml_gateway.catalog.uris import canonical
from pml_gateway.types import JsonObject

MAX_NAME = 64
MAX_DESCRIPTION = 1024
"""Maximum characters of a name and a description, by the specification of Agent Skills; the rest is cut."""


def frontmatter_of(entry: JsonObject) -> JsonObject:
    """Return the front matter in an entry of `skills/list`."""
    given = entry.get("frontmatter")
    return given if isinstance(given, dict) else {}


def skill_name(skill: Offer) -> str:
    """Return the name of a skill, or the folder in its URI if it has none."""
    given = frontmatter_of(skill.definition).get("name")
    return visible(given if isinstance(given, str) else folder_of(skill.name).rpartition("/")[2])[:MAX_NAME]


def skill_description(skill: Offer) -> str:
    """Return what a skill says that it is for."""
    given = frontmatter_of(skill.definition).get("description")
    return visible(given).strip()[:MAX_DESCRIPTION] if isinstance(given, str) else ""


def skill_files(skill: Offer) -> Sequence[str]:
    """Return the URIs of the files of a skill, as its server names them; empty if it does not say."""
    listed = skill.definition.get("resources")
    uris = [each.get("uri") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [uri for uri in uris if isinstance(uri, str) and is_within(folder_of(skill.name), uri)]


def folder_of(uri: str) -> str:
    """Return the URI of the folder of a skill, without a slash at its end."""
    return uri.rpartition("/")[0]


def is_within(folder: str, uri: str) -> bool:
    """Return True if a URI is that of something in a folder, however it is written."""
    return canonical(uri).startswith(f"{canonical(folder)}/")
