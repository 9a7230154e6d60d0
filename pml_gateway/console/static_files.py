"""The files of the console that are the same for everyone: its style, its script and its icon."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


def static_file(name: str) -> Response:
    """Return a file by its name, which is one of `STATIC`."""
    return Response((files("pml_gateway.console") / "static" / name).read_bytes(), media_type=STATIC[name])
