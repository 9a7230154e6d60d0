"""The table of values that are secret or not, as servers' own pages have them."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent.parent / "data" / "credentials.tsv"

_TEMPLATE = re.compile(r"\{(alnum|hex|digits|upper|letters|b64url_|b64_|base32_|uuid)(\d*)\}")
_ALPHABETS = {
    "alnum": string.ascii_letters + string.digits,
    "hex": "0123456789abcdef",
    "digits": string.digits,
    "upper": string.ascii_uppercase + string.digits,
    "letters": string.ascii_letters,
    "base32_": string.ascii_uppercase + "234567",
}


@dataclass(frozen=True)
class Row:
    """One value where it stands; `secrets` are the parts of `value` that are secret."""

    place: str
    name: str
    value: str
    secrets: tuple[str, ...]
    is_held_out: bool


def rows() -> Iterator[Row]:
    """The table; half of it was not looked at while the judgement was written."""
    for line in TABLE.read_text().splitlines():
        if line.startswith("#"):
            continue
        place, name, marked = line.split("\t")
        digest = hashlib.sha256(line.encode()).digest()
        chance = random.Random(digest)
        while match := _TEMPLATE.search(marked):
            marked = marked[: match.start()] + _characters(match[1], match[2], chance) + marked[match.end() :]
        secrets = tuple(re.findall("«(.*?)»", marked))
        yield Row(place, name, marked.replace("«", "").replace("»", ""), secrets, digest[0] % 2 == 1)


def _characters(kind: str, length: str, chance: random.Random) -> str:
    if kind == "uuid":
        text = chance.randbytes(16).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    count = int(length)
    if kind.startswith("b64"):
        encode = base64.urlsafe_b64encode if kind == "b64url_" else base64.b64encode
        return encode(chance.randbytes(count)).decode()[:count]
    text = "".join(chance.choice(_ALPHABETS[kind]) for _ in range(count))
    # A key of random characters has letters and digits.
    return text if kind in ("digits", "letters", "base32_") else f"{text[:-2]}{chance.choice('abcdef')}7"[-count:]
