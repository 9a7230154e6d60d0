"""The file of pins: shared, private, and no way around it when it is damaged or cannot be written."""

from __future__ import annotations

import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from pml_gateway.config.packages import NO_PACKAGE
from pml_gateway.trust.identity import SERVER, Identity, digest
from pml_gateway.trust.pins import Accepted, Because, Form, Held, Pins, PinsFile, ServerPins
from pml_gateway.trust.verdict import Reason, RiskClass, SubjectKind, Verdict

NOTE = (SubjectKind.TOOL, "note")
RISKY = Verdict(True, 0.9, (Reason(RiskClass.RUG_PULL, "description", "x\ud800"),))


def form(text: str, verdict: Verdict | None = None) -> Form:
    definition = {"name": "note", "description": text}
    return Form(definition, digest(definition), Accepted.OWNER, 1.5, verdict)


def held(text: str) -> Held:
    definition = {"name": "note", "description": text}
    return Held(definition, digest(definition), Because.CHANGED, 2.5, RISKY)


def server(name: str, *texts: str) -> ServerPins:
    pins = ServerPins(name, "w", ("f",)).with_forms([(NOTE, form(text)) for text in texts])
    return ServerPins(name, "w", ("f",), pins.accepted, {SERVER: (held("s"),)}, {NOTE: (held("r"),)})


def test_what_was_written_is_read_again_word_for_word(tmp_path: Path) -> None:
    pins = Pins({("a", "w"): server("a", "one", "two\u202e")}, {"x": True, "y": False})
    PinsFile(tmp_path / "trust", "id").change(lambda _: pins)
    file = PinsFile(tmp_path / "trust", "id")
    assert file.load() == pins
    assert file.load() is file.load()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert PinsFile(tmp_path / "trust", "other").load() == Pins()


def test_changes_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    files = [PinsFile(tmp_path, "id") for _ in range(4)]

    def work(at: int) -> None:
        for number in range(5):
            added = server(f"{at}-{number}", "text")
            files[at].change(partial(Pins.having, pins=added))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(PinsFile(tmp_path, "id").load().servers) == 20


def test_news_are_what_another_process_wrote(tmp_path: Path) -> None:
    mine, other = PinsFile(tmp_path, "id"), PinsFile(tmp_path, "id")
    mine.change(lambda pins: pins.having(server("a", "one")))
    assert not mine.is_news
    other.change(lambda pins: pins.having(server("b", "two")))
    assert mine.is_news
    assert {key[0] for key in mine.load().servers} == {"a", "b"}
    assert not mine.is_news


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "known": {}, "servers": [3]}', b"\xff"]
)
def test_a_damaged_file_is_set_aside_and_what_is_known_still_holds(tmp_path: Path, content: bytes) -> None:
    file = PinsFile(tmp_path, "id")
    known = file.change(lambda pins: pins.having(server("a", "one")))
    file.path.write_bytes(content)
    assert file.load() == known
    assert file.needs_writing
    assert file.path.with_suffix(".damaged").read_bytes() == content
    file.change(lambda pins: pins)
    assert PinsFile(tmp_path, "id").load() == known


def test_what_cannot_be_written_holds_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "trust").write_text("in the way", encoding="utf-8")
    file = PinsFile(tmp_path / "trust", "id")
    with pytest.raises(OSError, match="trust"):
        file.change(lambda pins: pins.having(server("a", "one")))
    assert "cannot be written" in file.problem
    assert set(file.load().servers) == {("a", "w")}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PinsFile(tmp_path, "id")
    file.change(lambda pins: pins.having(server("a", "one")))
    before = file.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pml_gateway.trust.pins.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        file.change(lambda pins: pins.having(server("b", "two")))
    assert file.path.read_bytes() == before
    assert len(file.load().servers) == 2
    monkeypatch.undo()
    file.change(lambda pins: pins)
    assert len(PinsFile(tmp_path, "id").load().servers) == 2, "written as soon as there is room"


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    PinsFile(tmp_path, "id").path.mkdir()
    file = PinsFile(tmp_path, "id")
    with pytest.raises(OSError, match="directory"):
        file.change(lambda pins: pins.having(server("a", "one")))
    assert file.path.is_dir()
    assert set(file.load().servers) == {("a", "w")}


def test_a_server_is_known_by_what_it_is_and_renamed_by_how_it_is_configured() -> None:
    pins = Pins({("a", "w"): server("a", "one")})
    assert pins.of("a", Identity("w", "another folder", NO_PACKAGE)) is pins.servers["a", "w"]
    renamed = pins.of("b", Identity("w", "f", NO_PACKAGE))
    assert renamed is not None
    assert (renamed.server, renamed.accepted) == ("b", pins.servers["a", "w"].accepted)
    assert pins.of("a", Identity("x", "f", NO_PACKAGE)) is None
    assert pins.of("b", Identity("w", "g", NO_PACKAGE)) is None


def test_of_many_forms_the_newest_are_kept() -> None:
    pins = server("a", *(str(number) for number in range(20)))
    assert [each.definition["description"] for each in pins.accepted[NOTE]] == [str(number) for number in range(12, 20)]


def test_a_rejected_form_is_accepted_no_longer_and_the_other_way_round() -> None:
    pins = server("a", "one")
    one = held("one")
    rejected = pins.rejecting(NOTE, one)
    assert NOTE not in rejected.accepted
    assert rejected.refuses(NOTE, one.digest)
    again = rejected.with_forms([(NOTE, form("one"))])
    assert not again.refuses(NOTE, one.digest)
    assert again.form(NOTE, one.digest) is not None


def test_what_servers_list_drives_out_none_of_what_the_owner_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.trust.pins.MAX_KNOWN", 3)
    pins = Pins().knowing("rejected", is_rejected=True)
    for number in range(5):
        pins = pins.knowing(f"held {number}", is_rejected=False)
    assert pins.known == {"rejected": True, "held 3": False, "held 4": False}
    for number in range(3):
        pins = pins.knowing(f"rejected {number}", is_rejected=True)
    assert list(pins.known) == ["rejected 0", "rejected 1", "rejected 2"]
