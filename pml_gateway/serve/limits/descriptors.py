"""Open files of this process: connections may take most of them, and some stay for servers and files."""

from __future__ import annotations

import sys

from pml_gateway.log import get_logger

logger = get_logger(__name__)

ENOUGH = 65_536
"""Open files that are asked for at most: more are of no use here, and there are programs that close every possible one
when they start, which the gateway's children would do for seconds where a billion are allowed."""

RESERVE = 256
"""Kept for what is no connection of a client: a child process takes three, a server over HTTP a few, and files."""


def raise_limit() -> int:
    """Let this process open as many files as it may; returns how many these are."""
    if sys.platform == "win32":
        return ENOUGH
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = ENOUGH if hard == unlimited else min(hard, ENOUGH)
    if soft == unlimited or soft >= wanted:
        return ENOUGH if soft == unlimited else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.debug("this process may open %d files, and no more: %s", soft, error)
        return soft
    return wanted


def connections_within(descriptors: int, wanted: int) -> int:
    """Return the maximum number of connections that leaves open files for everything else."""
    most = max(descriptors - RESERVE, descriptors // 2, 1)
    if most >= wanted:
        return wanted
    logger.warning(
        "http.max_connections is %d, but this process may open %d files: %d connections are served; raise the limit "
        "(ulimit -n, or LimitNOFILE= of a service) or lower the setting",
        wanted,
        descriptors,
        most,
    )
    return most
