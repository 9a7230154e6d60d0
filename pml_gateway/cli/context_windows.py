"""The sizes of models' context windows."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from pml_gateway.text import suggestion

DEFAULT_WINDOW = 200_000
"""What the models of most coding clients have."""

WINDOWS: Mapping[str, int] = {
    "claude-haiku-4-5": 200_000,
    "claude-opus-4-1": 200_000,
    "claude-opus-4-5": 200_000,
    "claude-sonnet-4": 200_000,
    "claude-sonnet-4-5": 200_000,
    "gemini-2.5-flash": 1_048_576,
    "gemini-2.5-pro": 1_048_576,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "o3": 200_000,
    "o4-mini": 200_000,
}
"""Tokens of the context window, as each model's maker publishes it; without options that cost extra."""


def context_window(model: str | None, given: int | None) -> int:
    """The window asked for, by size or by model.

    Raises:
        typer.BadParameter: no such model, or both are given.
    """
    if given is not None and model is not None:
        raise typer.BadParameter("give one of the two", param_hint="--context-window/--model")
    if model is None:
        return given or DEFAULT_WINDOW
    name = model.lower().replace("_", "-")
    if name not in WINDOWS:
        known = ", ".join(WINDOWS)
        near = suggestion(name, WINDOWS) if name else ""
        raise typer.BadParameter(
            f"no model {model!r} is known{near or '.'} Known are {known}; for others, give --context-window N",
            param_hint="--model",
        )
    return WINDOWS[name]
