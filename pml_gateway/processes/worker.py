"""Does work that could take too long or too much memory, within limits that end it; a small program of its own.

    python -I -S worker.py BYTES FOLDER...

BYTES is how much memory it may take, and the folders are where modules are found. It is asked over stdin and answers
over stdout, in pickles of plain values: a question names a function, its arguments and the seconds of processor time it
may take. One that takes more ends the process, also when the gateway was killed meanwhile; so do the end of stdin and a
long silence.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from importlib import import_module

IDLE_SECONDS = 120
"""How long one that is not asked anything stays: a start takes a fifth of a second, and it holds 30 MB."""

NICENESS = 5

OUT_OF_MEMORY = 3
"""Its exit status then: what is left of its memory could not be relied on."""


def main() -> None:
    """Answer until the gateway ends, or asks nothing for a while."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    # What is imported may print; the answers are not the place.
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    sys.path[:] = sys.argv[2:]
    _limit_memory(int(sys.argv[1]))
    if sys.platform != "win32":
        # Whoever is answered meanwhile goes first.
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
        # Without any more of Python: even an exception may need memory.
        os._exit(OUT_OF_MEMORY)


def _limit_memory(size: int) -> None:
    if sys.platform in ("win32", "darwin"):
        # Not there, or not kept; the time is limited all the same.
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _limit_time(seconds: float) -> None:
    """End this process once it has used `seconds` of processor time from now; 0 lifts that."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _is_asked(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    import select

    return bool(select.select([descriptor], [], [], IDLE_SECONDS)[0])


if __name__ == "__main__":
    main()
