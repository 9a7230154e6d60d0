"""Garbage is collected again once nobody puts it off any more."""

from __future__ import annotations

import gc

from pml_gateway.gc_pause import collection_put_off


def test_the_last_of_several_has_garbage_collected_again() -> None:
    first, second = collection_put_off(), collection_put_off()
    with first:
        second.__enter__()
        assert not gc.isenabled()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        with collection_put_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
