"""Single settings by their dotted keys: values read from text, and laid over settings to see what they would change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from pml_gateway.config.document import parse
from pml_gateway.config.layers import KeyPath, layer_of, merge
from pml_gateway.config.load import validated
from pml_gateway.config.problems import annotation_at, is_list, nearest_key, without_none
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.text import did_you_mean

LISTING_SECTIONS = ("gateway", "sets", "roles", "clients")
"""Sections that decide which tools a client is listed."""

MAX_SHOWN = 80

_SEPARATOR = re.compile(r"[,\n]")


def setting_tree(key: str, value: Any) -> dict[str, Any]:
    """Return the nested value of a setting, as a file has it."""
    tree = value
    for part in reversed(_path(key)):
        tree = {str(part): tree}
    found: dict[str, Any] = tree
    return found


def read_setting(key: str, text: str) -> Any:
    """Return the value that a text stands for.

    A text needs no quotes, and the entries of a list may be separated by commas or lines.

    Raises:
        UsageError: there is no such setting, or the text is broken YAML.
    """
    path = _path(key)
    if is_list(path) and text.strip() == "null" and get_origin(annotation_at(path)) is not tuple:
        return None
    if is_list(path) and not text.lstrip().startswith("["):
        return [entry for part in _SEPARATOR.split(text) if (entry := part.strip())]
    if without_none(annotation_at(path)) is str:
        is_null = text in ("", "null") and annotation_at(path) is not str
        return None if is_null else text
    try:
        values = parse(f"value: {text}", "command line", Path(key)).values
    except ConfigurationError:
        values = {}
    if values.keys() != {"value"}:
        # A sentence with a colon is a text as well; whether the setting takes texts is checked with the rest.
        return text
    return values["value"]


def read_settings(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Return the values of `KEY=VALUE` pairs by key.

    Raises:
        UsageError: a pair has no `=`, or its key is no setting.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise UsageError(
                f"{option}: {pair[:MAX_SHOWN]!r} is not KEY=VALUE",
                hint=f"for example {option} gateway.hybrid.semantic_threshold=0.5",
            )
        values[key.strip()] = read_setting(key.strip(), text.strip())
    return values


def with_single_settings(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with the values, by dotted key, laid over the sections that decide about lists.

    Raises:
        UsageError: a key is unknown, or in another section.
        ConfigurationError: a value is invalid.
    """
    layers = [layer_of("user", settings.model_dump(include=set(LISTING_SECTIONS)), "")]
    for key, value in values.items():
        if _path(key)[0] not in LISTING_SECTIONS:
            raise UsageError(f"{key} does not decide about lists", hint=f"settings of {', '.join(LISTING_SECTIONS)} do")
        layers.append(layer_of("command line", setting_tree(key, value), "the tried value"))
    laid = validated(merge(layers))
    return settings.model_copy(update={name: getattr(laid, name) for name in LISTING_SECTIONS})


def _path(key: str) -> KeyPath:
    path = tuple(key.split("."))
    if annotation_at(path) is not None:
        return path
    meant = nearest_key(path)
    near = f"; {did_you_mean(['.'.join(map(str, meant))])}" if meant is not None else ""
    raise UsageError(f"no setting {key[:MAX_SHOWN]!r}{near}", hint="pml config reference lists all")
