"""Texts with what no reader sees in them, and ordinary texts of many scripts that use some of the same characters."""

from __future__ import annotations

from hypothesis import strategies as st

ORDINARY = (
    "Creates an issue.\n\n\tSteps:\r\n- one",
    "naïve café — “straße” … №5 ½ €",
    "Ελληνικά, Русский, Հայերեն, ქართული",
    # Joiners that part what would be joined.
    "می\u200cخواهم نامه\u200cای بنویسم",
    # A mark of direction at the end of a line from right to left.
    "שלום (עולם)!\u200f 123",
    "العربية ١٢٣ \u0600١٢",
    "क्\u200dष र्\u200d ज़िन्दगी",
    "সর\u200d্যাক বাংলা",
    "ශ්\u200dරී ලංකා",
    "മലയാളം ന്\u200d",
    "ภาษาไทย ພາສາລາວ ខ្មែរ မြန်မာ",
    "中文 漢字 葛\U000e0100 日本語 한국어 조선말",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ\u180b",
    "❤\ufe0f\u200d🔥 👩\u200d👩\u200d👧\u200d👦 👨🏽\u200d💻 🏳\ufe0f\u200d🌈 1\ufe0f⃣ #\ufe0f⃣ ☎\ufe0e 🇩🇪",
    "x² ≤ ∑ ≨\ufe00 ∩\ufe00",
)
"""Each is to stay as it is."""

SEQUENCES = (
    "\x1b[31m",
    "\x1b[2J\x1b[H",
    "\x9b1;31m",
    "\x1b]0;a title\x07",
    "\x1b]8;;http://evil.test\x1b\\",
    "\x9d0;a title\x9c",
    "\x1bPdcs\x1b\\",
    "\x1b_apc\x1b\\",
    "\x1bc",
    "\x1b(B",
)
"""What terminals obey."""

CHARACTERS = (
    "\x00\x08\x0b\x0c\x1b\x7f\x85\x9b\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c"
    "\u202d\u202e\u2060\u2061\u2066\u2067\u2068\u2069\u206a\u3164\ufe00\ufe0f\ufeff\uffa0\U000e0001\U000e0041\U000e007f"
    "\U000e0100\U000e01ef\ud800\r"
)
"""Characters that are hidden, some of them only where nothing needs them."""


def tagged(text: str) -> str:
    """An ASCII text as tag characters, which are shown as nothing and read by models."""
    return "".join(chr(0xE0000 + ord(character)) for character in text)


hidden = st.sampled_from([*CHARACTERS, *SEQUENCES]) | st.text("abc ", min_size=1).map(tagged)
ordinary = st.sampled_from(ORDINARY)
texts = st.lists(hidden | ordinary | st.text(max_size=4), max_size=12).map("".join)
"""Anything, in any order."""
