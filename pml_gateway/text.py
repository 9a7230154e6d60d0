"""What messages share: numbers with their nouns (`1 call`, `2 calls`, `1,234 entries`)."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with the noun in the form that belongs to it; `plural` where that is not the noun with an s."""
    return f"{number:,} {plural_of(number, noun, plural)}"


def plural_of(number: int, noun: str, plural: str = "") -> str:
    """The form of `noun` that belongs to the number."""
    if number == 1:
        return noun
    return plural or f"{noun}s"
