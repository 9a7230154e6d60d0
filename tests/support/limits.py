"""A pytest plugin: tests run with the default signals, and each ends within its time limit."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import suppress

import pytest
import pytest_timeout

from tests.e2e.install import INSTALL_SECONDS

AGAIN_SECONDS = 20
"""Between alarms: the first may end a wait within a task that others wait for, and cleaning up may hang as well."""

OWN_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these itself, and restores them in the processes that it starts."""

INSTALLATION_SECONDS = INSTALL_SECONDS + 120
"""The first test that needs the real servers installs them; others may wait for that."""


def restore_signals() -> None:
    """Undo what a shell in the background, nohup or a service manager left: ignored signals and blocked ones."""
    for each in signal.valid_signals():
        if signal.getsignal(each) is signal.SIG_IGN and each not in OWN_SIGNALS:
            # The C library keeps two real-time signals to itself.
            with suppress(OSError, ValueError):
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Restore signals in each process that runs tests; what starts these keeps its own, as nohup wants it."""
    if session.config.getoption("dist", "no") == "no":
        restore_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real servers the time to install these."""
    for item in items:
        if "installation" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(INSTALLATION_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> Generator[None, object, object]:
    """Repeat the alarm until the test has ended."""
    done = yield
    item.stash[_SETTINGS] = settings
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SECONDS)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit the teardown too: the plugin's own timer ends where a test fails."""
    if settings := item.stash.get(_SETTINGS, None):
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)


_SETTINGS = pytest.StashKey[pytest_timeout.Settings]()
