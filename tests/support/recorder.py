"""Stands between a client and a stdio server and writes down every request line that passes.

python -m tests.support.recorder FILE COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import IO


def main() -> None:
    """Pass everything on, both ways, until either side ends."""
    record, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    threading.Thread(target=_pass_on, args=(child.stdout, sys.stdout.buffer, None), daemon=True).start()
    _pass_on(sys.stdin.buffer, child.stdin, Path(record))
    child.stdin.close()
    child.wait(10)


def _pass_on(source: IO[bytes], target: IO[bytes], record: Path | None) -> None:
    for line in source:
        if record is not None:
            with record.open("ab") as file:
                file.write(line)
        target.write(line)
        target.flush()


if __name__ == "__main__":
    main()
