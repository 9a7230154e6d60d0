"""A worker for tasks that could take too much time or memory, with limits that end it; a standalone program.

    python -I -S worker.py BYTES FOLDER...

BYTES is its memory limit, and the folders are the search path for modules. It reads questions from stdin and writes
answers to stdout, as pickles of plain values: a question names a function, its arguments and its limit in seconds of
processor time. Exceeding that ends the process, even if the gateway was killed meanwhile; so do the end of stdin and a
long idle time.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from importlib import import_module

IDLE_SECONDS = 120
"""Seconds after which an idle worker ends: a start takes a fifth of a second, and a worker holds 30 MB."""

NICENESS = 5

OUT_OF_MEMORY = 3
"""Its exit status when out of memory, since its state is then unreliable."""


def main() -> None:
    """Answer until the gateway ends, or sends no question for a while."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    # Imported modules may print, which must not end up among the answers.
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    sys.path[:] = sys.argv[2:]
    _limit_memory(int(sys.argv[1]))
    if sys.platform != "win32":
        # Processes that serve clients meanwhile take precedence.
        os.nice(NICENESS)
    try:
        while _is_asked(questions.fileno()):
            module, name, arguments, seconds = pickle.load(questions)
            _limit_time(seconds)
            answer = getattr(import_module(module), name)(*arguments)
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
            _limit_time(0)
    except EOFError:
        return
    except MemoryError:
        # Without running more Python: even an exception may need memory.
        os._exit(OUT_OF_MEMORY)


def _limit_memory(size: int) -> None:
    if sys.platform in ("win32", "darwin"):
        # Not available, or not enforced; the time is limited anyway.
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _limit_time(seconds: float) -> None:
    """End this process once it has used `seconds` more of processor time; 0 removes the limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _is_asked(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    import select

    return bool(select.select([descriptor], [], [], IDLE_SECONDS)[0])


if __name__ == "__main__":
    main()
