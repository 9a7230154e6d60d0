"""The shipped model: turns its name into the place where its files lie."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import Calibration

SHIPPED_MODEL = "minilm-tools-int8"

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_directory() -> Path:
    """Where the shipped model lies: inside an installed package, or beside it in a checkout."""
    places = (_PACKAGE / "_shipped" / "models" / SHIPPED_MODEL, _PACKAGE.parent / "models" / SHIPPED_MODEL)
    for place in places:
        if place.is_dir():
            return place
    raise ModelError(
        f"the shipped embedding model is missing: neither {places[0]} nor {places[1]} exists",
        hint="reinstall pml-gateway, or name another model in search.model",
    )


@cache
def shipped_calibration() -> Calibration:
    """The calibration of the shipped model; the reference for models without one of their own."""
    return Calibration.read(shipped_directory())
