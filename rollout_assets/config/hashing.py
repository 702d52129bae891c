"""Canonical JSON and its digest: equal values give equal hashes, on any machine and in any order of keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no whitespace, ASCII, shortest round-trip floats; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def canonical_hash(value: Any) -> str:
    """SHA-256 of ``canonical_json(value)`` in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
