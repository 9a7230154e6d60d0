"""The shipped configurations of haproxy and nginx in front of gateways of a test, and those programs."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pml_gateway.docs import deployment_files
from tests.support.listening import free_port
from tests.support.waiting import wait_for

Balancer = Literal["haproxy", "nginx"]


def adapted(balancer: Balancer, port: int, addresses: Sequence[str]) -> str:
    """The shipped configuration with another port and other replicas, and nothing else changed."""
    match balancer:
        case "haproxy":
            text = deployment_files()["haproxy.cfg"].replace(":8080", f"127.0.0.1:{port}")
            servers = "\n".join(f"    server gateway{number} {each}" for number, each in enumerate(addresses))
            return re.sub(r" {4}server-template .*", servers, text).replace(" resolvers containers", "")
        case "nginx":
            text = deployment_files()["nginx.conf"].replace("listen 8080", f"listen 127.0.0.1:{port}")
            line = re.compile(r"( +server )10\.0\.0\.11:8765(.*\n)(?: +server 10\..*\n)+")
            return line.sub(lambda found: "".join(f"{found[1]}{each}{found[2]}" for each in addresses), text)


@contextmanager
def balanced(
    balancer: Balancer, program: Path, urls: Sequence[str], folder: Path, *, is_sticky: bool = True
) -> Iterator[str]:
    """Run one of them in front of endpoints, and give the endpoint of all.

    Args:
        balancer: which of them.
        program: where it is.
        urls: the endpoints.
        folder: where its files go.
        is_sticky: False leaves out what keeps a session at its replica.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, config = free_port(), folder / f"{balancer}.conf"
    text = adapted(balancer, port, [urlsplit(url).netloc for url in urls])
    config.write_text(text if is_sticky else re.sub(r"(?m)^ +(stick|hash) .*\n", "", text), encoding="utf-8")
    arguments = {
        "haproxy": ["-f", str(config)],
        "nginx": ["-p", str(folder), "-c", str(config), "-g", f"daemon off; pid {folder}/pid; error_log stderr;"],
    }
    with (folder / f"{balancer}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments[balancer]], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_for(lambda: _listens(port), f"{balancer} listens")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
            process.wait(10)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
