"""Batch collection: many rollouts, here or on a server, one JSON line each; and their aggregation."""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
