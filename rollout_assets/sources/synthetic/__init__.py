"""Synthetic sources: procedural homes, walks through them, and what a camera sees, written as a real source store."""

from rollout_assets.sources.synthetic.config import SyntheticConfig
from rollout_assets.sources.synthetic.store import SyntheticSummary, append_synthetic_snippets, build_synthetic_store

__all__ = ["SyntheticConfig", "SyntheticSummary", "append_synthetic_snippets", "build_synthetic_store"]
