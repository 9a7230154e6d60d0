"""A URI written otherwise, at random, and what well-known readers take it for."""

from __future__ import annotations

import json
import posixpath
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from urllib.parse import quote, unquote, urlparse

import pytest

_READERS = """
const { fileURLToPath } = require('url');
const { resolve } = require('path');
const tried = (read) => { try { return read(); } catch { return null; } };
require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const uri = JSON.parse(line);
  const url = tried(() => new URL(uri));
  if (url !== null && /^(https?|wss?|ftp):$/.test(url.protocol)) url.username = url.password = url.hash = '';
  console.log(JSON.stringify(url !== null && url.protocol !== 'file:' ? [url.href] : [
    url && tried(() => decodeURIComponent(url.pathname)),
    url && tried(() => fileURLToPath(url)),
    tried(() => resolve(uri.startsWith('file://') ? fileURLToPath(uri) : uri)),
  ]));
});
"""
"""`new URL()`, `url.fileURLToPath`, and how the reference filesystem server reads the URIs of roots.

Of other schemes, the URI as `new URL()` writes it, without what does not name the resource.
"""

Change = Callable[[str, Random], str]


def variation(uri: str, random: Random, changes: int = 3) -> str:
    """The URI after up to so many changes, most of which leave some reader with the same resource."""
    for _ in range(random.randint(1, changes)):
        uri = random.choice(CHANGES)(uri, random)
    return uri


def _at(uri: str, random: Random, text: str) -> str:
    where = random.randint(0, len(uri))
    return uri[:where] + text + uri[where:]


def _after_slash(uri: str, random: Random, text: str) -> str:
    slashes = [index + 1 for index, each in enumerate(uri) if each == "/"] or [0]
    where = random.choice(slashes)
    return uri[:where] + text + uri[where:]


def _escape(uri: str, random: Random) -> str:
    where = random.randrange(len(uri) or 1)
    escaped = "".join(f"%{byte:02{random.choice('xX')}}" for byte in uri[where : where + 1].encode("utf-8", "replace"))
    return uri[:where] + escaped + uri[where + 1 :]


def _escape_twice(uri: str, random: Random) -> str:
    where = uri.find("%", random.randint(0, len(uri)))
    return _escape(uri, random) if where < 0 else f"{uri[:where]}%25{uri[where + 1 :]}"


def _decode(uri: str, _random: Random) -> str:
    return unquote(uri)


def _escape_all(uri: str, random: Random) -> str:
    scheme, colon, rest = uri.partition(":")
    return scheme + colon + quote(rest, safe=random.choice(["/", "", "/?#"]))


def _host(uri: str, random: Random) -> str:
    scheme, colon, rest = uri.partition(":")
    host = random.choice(
        [
            "localhost",
            "LOCALHOST",
            "anything",
            "127.0.0.1",
            "[::1]",
            "u@h",
            "h:80",
            "C:",
            "c|",
            "ä",
            "xn--4ca",
            "..",
            "%2e",
        ]
    )
    path = "/" + rest.lstrip("/")
    return f"{scheme}{colon}//{host}{path}"


def _slashes(uri: str, random: Random) -> str:
    scheme, colon, rest = uri.partition(":")
    return scheme + colon + "/" * random.randint(0, 5) + rest.lstrip("/")


def _backslash(uri: str, random: Random) -> str:
    slashes = [index for index, each in enumerate(uri) if each == "/"]
    if not slashes:
        return uri
    where = random.choice(slashes)
    return (
        uri[:where] + random.choice(["\\", "%5c", "%5C", "%2f", "%2F", "%252f", "//", "/./", "/.//"]) + uri[where + 1 :]
    )


def _segment(uri: str, random: Random) -> str:
    dots = ["..", "%2e%2e", ".%2E", "%2e.", "%252e%252e", "..\\", "%2e%2e%2f", "..%2f", "..%5c", ".\t.", "..;"]
    down = ["", "y", "private", "srv", "a%2fb", "a\\b", ".", "%2e", "C:", "C|", "y?", "y#"]
    text = random.choice(down) + random.choice(["/", "\\", "%2f", "//"]) + random.choice(dots) + "/"
    return _after_slash(
        uri, random, random.choice([text, "./", "%2e/", "%2E/", ".//", "/", text + text, "../", "../../"])
    )


def _insert(uri: str, random: Random) -> str:
    return _at(
        uri, random, random.choice(["\t", "\n", "\r", "\r\n", "%09", "%0a", "%0d", "\0", "%00", "\x7f", "\x1b", " "])
    )


def _around(uri: str, random: Random) -> str:
    before, after = random.choice(
        [(" ", ""), ("", " "), ("\t", "\n"), ("\x00", ""), ("", "%20"), ("<", ">"), ("url:", "")]
    )
    return before + uri + after


def _end(uri: str, random: Random) -> str:
    ends = [
        "/",
        "//",
        "/.",
        "/..",
        "/./",
        "?",
        "#",
        "?a=1",
        "#a",
        "?#",
        "%23",
        "%3f",
        "%3F",
        ";",
        ";a=1",
        "%00",
        ".",
        "\\",
    ]
    return uri + random.choice(ends)


def _case(uri: str, random: Random) -> str:
    scheme, colon, rest = uri.partition(":")
    return "".join(random.choice([each.upper(), each.lower()]) for each in scheme) + colon + rest


def _without_scheme(uri: str, random: Random) -> str:
    rest = uri.partition(":")[2]
    return random.choice([rest, rest.lstrip("/"), "/" + rest.lstrip("/")])


def _full_width(uri: str, random: Random) -> str:
    return uri.replace(*random.choice([(".", "．"), ("/", "／"), ("i", "ı"), ("p", "ｐ"), ("e", "é")]), 1)


def _lose(uri: str, random: Random) -> str:
    where = random.randrange(len(uri) or 1)
    return uri[:where] + uri[where + 1 :]


CHANGES: tuple[Change, ...] = (
    _escape,
    _escape,
    _escape_twice,
    _escape_all,
    _decode,
    _host,
    _slashes,
    _backslash,
    _segment,
    _segment,
    _insert,
    _around,
    _end,
    _case,
    _without_scheme,
    _full_width,
    _lose,
)
"""One change each; what is listed twice has more to choose from."""


def web_variation(uri: str, random: Random, changes: int = 3) -> str:
    """A URI of the web after changes, half of which are ones that parsers of the web undo."""
    for _ in range(random.randint(1, changes)):
        uri = random.choice(random.choice((CHANGES, WEB_CHANGES)))(uri, random)
    return uri


def _separators(uri: str, random: Random) -> str:
    scheme, colon, rest = uri.partition(":")
    return scheme + colon + "".join(random.choices("/\\", k=random.randint(0, 4))) + rest.lstrip("/\\")


def _in_host(uri: str, change: Callable[[str], str]) -> str:
    before, slashes, rest = uri.partition("//")
    host, slash, below = rest.partition("/")
    return before + slashes + change(host) + slash + below


def _ignorable(uri: str, random: Random) -> str:
    return _in_host(uri, lambda host: _at(host, random, random.choice("\u00ad\u200b\u2060\ufeff\u180e\ufe0f\u200d")))


def _host_form(uri: str, random: Random) -> str:
    def written(host: str) -> str:
        index = random.randrange(len(host) or 1)
        each = host[index : index + 1]
        other = random.choice(
            [
                each.upper(),
                "".join(f"%{byte:02x}" for byte in each.encode("utf-8", "replace")),
                chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each,
                "。" if each == "." else each,
            ]
        )
        return host[:index] + other + host[index + 1 :]

    return _in_host(uri, written)


def _authority_form(uri: str, random: Random) -> str:
    def written(host: str) -> str:
        return random.choice(
            [
                *(f"{host}{end}" for end in (":", ":443", ":0443", ":00443", ":80", ".", ":8443", "#@evil", "?@evil")),
                *(f"{user}@{host}" for user in ("u", "u:p", "", "a@b", "evil\\")),
            ]
        )

    return _in_host(uri, written)


def _number(uri: str, random: Random) -> str:
    def written(host: str) -> str:
        parts = host.split(".")
        if len(parts) != 4 or not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
            return host
        kept = random.randint(0, 3)
        last = sum(int(part) << 8 * (3 - index) for index, part in enumerate(parts) if index >= kept)
        forms = ("{}", "0{:o}", "0x{:x}", "0X{:X}", "000{:o}", "0x00{:x}")
        return ".".join(random.choice(forms).format(each) for each in [*map(int, parts[:kept]), last])

    return _in_host(uri, written)


WEB_CHANGES: tuple[Change, ...] = (_separators, _ignorable, _host_form, _host_form, _authority_form, _number, _number)


def path_in_python(uri: str) -> str | None:
    """The path of a `file:` URI as most Python servers read it."""
    try:
        parsed = urlparse(uri)
    except ValueError:
        return None
    return unquote(parsed.path) if parsed.scheme == "file" else None


def path_after_decoding(uri: str) -> str | None:
    """As a careless server reads it, which decodes before it reads."""
    return path_in_python(unquote(uri))


def file_of(path: str) -> str:
    """The file that a system opens for an absolute path."""
    return posixpath.normpath("/" + path.lstrip("/"))


@contextmanager
def node_readers() -> Iterator[Callable[[str], list[str]]]:
    """The paths that Node's readers of URIs take one for; the test is skipped without Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, whose readers of URIs this compares with")
    process = subprocess.Popen([node, "-e", _READERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    given, answers = process.stdin, process.stdout

    def read(uri: str) -> list[str]:
        given.write(json.dumps(uri) + "\n")
        given.flush()
        return [each for each in json.loads(answers.readline()) if each is not None]

    try:
        yield read
    finally:
        given.close()
        answers.close()
        process.wait(timeout=30)
