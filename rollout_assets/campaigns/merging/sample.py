"""Which of what nobody wrote lately is read again: a bounded part, drawn at random by a seed that is recorded.

A promotion and its checks read every byte of what is new. Of the rest they read metadata, whatever has another time
than it had, and a sample: each promotion draws another one, so that bits that rot silently are found over time, at a
cost that does not grow with the campaign. What is smaller than the sample is read whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from rollout_assets.randomness import rng_for

SAMPLE_BYTES = 64 << 20
"""Bytes of a sample."""

SAMPLE_FILES = 1_000
"""Files of a sample, because opening a small one costs as much as reading it."""

SAMPLE_SHARDS = 8
"""Shards of a sample; one has some hundred files."""


@dataclass(frozen=True)
class ReadSample:
    """A sample by its seed: the same seed draws the same of the same."""

    seed: int
    most_bytes: int = SAMPLE_BYTES
    most_files: int = SAMPLE_FILES
    most_shards: int = SAMPLE_SHARDS

    @classmethod
    def new(cls) -> ReadSample:
        """A sample of a seed that nobody can foresee."""
        return cls(secrets.randbits(32))

    def files(self, sizes: Mapping[str, int], of: str) -> frozenset[str]:
        """Some of the files ``of`` something, given the bytes of each; at least one, if there is any."""
        return self._draw(sizes, self.most_files, "files", of)

    def shards(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Some shards, given the bytes of each; at least one, if there is any."""
        return self._draw(sizes, self.most_shards, "shards", "")

    def _draw(self, sizes: Mapping[str, int], most: int, kind: str, of: str) -> frozenset[str]:
        names = sorted(sizes)
        drawn: list[str] = []
        left = self.most_bytes
        for place in rng_for(self.seed, kind, of).permutation(len(names))[:most].tolist():
            left -= sizes[names[place]]
            if left < 0 and drawn:
                break
            drawn.append(names[place])
        return frozenset(drawn)
