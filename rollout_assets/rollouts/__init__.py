"""Target-conditioned rollouts and their replay stores: the public surface, loaded on first use."""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
