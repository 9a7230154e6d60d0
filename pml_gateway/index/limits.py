"""Sizes up to which a search compares one by one."""

from __future__ import annotations

EXACT_LIMIT = 50_000
"""Tools. Up to here an exhaustive scan takes at most about 10 ms, building seconds in the background, and nothing but
the embeddings is worth a file; beyond it the best are looked for among likely candidates, in files that are mapped."""

SCANNED_ALLOWED = 2_000
"""Tools that a policy leaves of a large catalog; so few are compared one by one, in 2 ms."""
