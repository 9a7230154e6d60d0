"""Known secrets are masked in every form in which programs write them, in time by the length of the text."""

from __future__ import annotations

import html
import json
import textwrap
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.processes.child_log import LogReader, log_path
from pml_gateway.secrets.known import MIN_EDGE, KnownSecrets, SecretForms
from tests.support.examples import examples

pytestmark = pytest.mark.field("A7")

SECRETS = ("p@ss/w0rd +&=?\"x'", "sk-proj-9fK3~Zq", "schlüssel/ä 漢😀", "back\\slash\tand \x07 bell", "hunter2x")

FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "quote": lambda s: quote(s, safe=""),
    "quote with /": lambda s: quote(s, safe="/"),
    "quote_plus": quote_plus,
    "lower case": lambda s: quote(s, safe="").replace("%2F", "%2f"),
    "twice": lambda s: quote(quote(s, safe=""), safe=""),
    "as JavaScript": lambda s: quote(s, safe="!'()*-._~"),
    "parameter": lambda s: urlencode({"key": s}),
    "base64": lambda s: b64encode(s.encode()).decode(),
    "base64 unpadded": lambda s: b64encode(s.encode()).decode().rstrip("="),
    "urlsafe base64": lambda s: urlsafe_b64encode(s.encode()).decode(),
    "user and password": lambda s: b64encode(f"user:{s}".encode()).decode(),
    "a longer user": lambda s: urlsafe_b64encode(f"someone:{s}:more".encode()).decode().rstrip("="),
    "Basic, quoted": lambda s: quote(b64encode(f"a:{s}".encode()).decode(), safe=""),
    "base64 of JSON": lambda s: b64encode(json.dumps({"k": s}, ensure_ascii=False).encode()).decode(),
    "wrapped base64": lambda s: encodebytes(f"{'x' * 40}{s}{'y' * 40}".encode()).decode(),
    "JSON": lambda s: json.dumps(s)[1:-1],
    "JSON, not ASCII": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "JSON with \\/": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "JSON in JSON": lambda s: json.dumps(json.dumps({"k": s})),
    "repr": lambda s: repr(s)[1:-1],
    "HTML": lambda s: html.escape(s),
    "hex": lambda s: s.encode().hex(),
    "two lines": lambda s: f"{s[: len(s) // 2]}\n{s[len(s) // 2 :]}",
    "indented": lambda s: f"{s[:4]}\r\n    {s[4:]}",
    "in chunks": lambda s: "\n".join(textwrap.wrap(s.replace(" ", "_"), 3)) if " " not in s else s,
    "cut": lambda s: s[:-1],
}

INSIDE = {"base64 of JSON": ('"', "\\", "\t", "\x07"), "repr": ("'",), "hex": (), "cut": ()}
"""Characters that a form escapes once more in a way of its own; secrets with them are left out there."""


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_masked_in_every_form(form: str, secret: str) -> None:
    if any(character in secret for character in INSIDE.get(form, ())) or (form == "cut" and len(secret) <= MIN_EDGE):
        pytest.skip("it is escaped inside, or too short to be known by a part")
    known = KnownSecrets()
    known.remember(secret)
    written = FORMS[form](secret)

    shown = known.masked(f"before ({written}" if form == "cut" else f"before ({written}) after", "***")

    assert shown.startswith("before (")
    assert "***" in shown
    assert written not in shown
    left = shown.replace("***", "").removeprefix("before (").removesuffix(") after").removeprefix("key=")
    assert not [character for character in left if character not in '\n\r {}"\\k:']


@pytest.mark.parametrize("text", ["", "nothing", "a%", "\\u12", "%zz\\x", "aGVsbG8gd29ybGQ=", "hunter", "&amp;&#;"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert SecretForms.of(SECRETS, 6).masked(text, "***") == text


@given(st.text(min_size=8, max_size=40).filter(lambda text: len(text.strip()) >= 8), st.text(), st.text())
@settings(max_examples=examples(100))
def test_whatever_surrounds_a_secret_it_is_gone_and_lines_stay(secret: str, before: str, after: str) -> None:
    forms = SecretForms.of([secret], 6)

    for written in (secret.strip(), quote_plus(secret.strip(), errors="replace"), json.dumps(secret.strip())[1:-1]):
        text = f"{before}{written}{after}"
        shown = forms.masked(text, "***")
        assert "***" in shown
        assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize("part", ["sk-proj-", "%73", "\\u0073", "c2stcHJvai0", "a\n", "&#115;", "\\\\"])
def test_long_texts_are_masked_in_time_by_their_length(part: str) -> None:
    forms = SecretForms.of([*SECRETS, *(f"secret-{number}-of-many" for number in range(2000))], 6)
    took = []
    for length in (40_000, 160_000):
        text = part * (length // len(part))
        start = time.process_time()
        forms.masked(text, "***")
        took.append(time.process_time() - start)

    assert took[1] < 12 * took[0] + 0.05


def test_a_secret_over_the_end_of_a_line_is_masked_in_a_server_s_log(tmp_path: Path) -> None:
    path = log_path(tmp_path, "a")
    definition = UpstreamDefinition(command="x", env={"A_TOKEN": "sk-proj-9fK3~Zq"})
    reader = LogReader(path, definition)
    path.write_text("one sk-pr\noj-9fK3~Zq two\nthree %73k-proj-9fK3%7eZq\n")

    lines = reader.last(9)

    assert lines == ["one ***", "*** two", "three ***"]
    with path.open("a") as stream:
        stream.write(f"{'x' * 3990} sk-proj-9fK3~Zq\nfour\n")
    first, second = reader.more()
    assert "sk-proj" not in first
    assert second == "four"
