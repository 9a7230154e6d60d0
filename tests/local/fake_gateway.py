"""A gateway as small as can be, which `reach` starts: its arguments are home, configuration file and what it does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pml_gateway.local.endpoint import Endpoint


def main() -> None:
    home, config, behaviour = sys.argv[1:]
    endpoint = Endpoint.of(home, config)
    with Path(home, "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if behaviour == "fails":
        time.sleep(0.3)
        sys.stderr.write("no such model\n")
        sys.exit(78)
    life = endpoint.take_life()
    if life is None:
        sys.exit(3)
    if behaviour == "hangs":
        time.sleep(60)
    listener = endpoint.listen()
    while True:
        connection, _ = listener.accept()
        endpoint.admit(connection)
        line = connection.makefile("rb").readline()
        if line == b"down\n":
            endpoint.withdraw()
            sys.exit(0)
        connection.sendall(f"{os.getpid()}\n".encode())
        connection.close()


if __name__ == "__main__":
    main()
