"""A bridge to the gateway of `fake_gateway.py`, started where there is none: its arguments are home and behaviour."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from pml_gateway.local.bridge import ServeAloneError, serve
from pml_gateway.local.endpoint import Endpoint

MANY_FILES = 1100
"""More than `select` can wait for."""


def main() -> None:
    home, behaviour = sys.argv[1:]
    if behaviour == "many_files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for _ in range(MANY_FILES):
            os.open(os.devnull, os.O_RDONLY)
    config = f"{home}/config.yaml"
    command = [sys.executable, "-m", "tests.local.fake_gateway", home, config, behaviour]
    # The gateway starts in its home, from where it would not find the tests.
    os.environ["PYTHONPATH"] = str(Path.cwd())
    hello = {
        "attach": 1,
        "version": "1",
        "secret": "s",
        "pid": os.getpid(),
        "folder": home,
        "environ": {},
        "options": {},
    }
    try:
        sys.exit(serve(Endpoint.of(home, config), command, hello))
    except ServeAloneError:
        sys.exit(42)


if __name__ == "__main__":
    main()
