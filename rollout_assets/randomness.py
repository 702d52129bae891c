"""Randomness as a function of what it is for: equal keys give equal streams, on any machine, in any order.

Nothing in the package draws from a global generator. A caller names the draw, as in
``rng_for(seed, sample_key, target_id, "directions")``, and gets a counter-based generator keyed by that name.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rollout_assets.config import canonical_json

KeyPart = int | str | bool | None | tuple[int, ...] | tuple[str, ...]


def key_digest(*parts: KeyPart) -> bytes:
    """SHA-256 of the parts as a canonical JSON list; ``1`` and ``"1"`` differ."""
    return hashlib.sha256(canonical_json(list(parts))).digest()


def rng_for(*parts: KeyPart) -> np.random.Generator:
    """A Philox generator keyed by the parts."""
    key = np.frombuffer(key_digest(*parts)[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
