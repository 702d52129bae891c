"""How good policies are: rolled out on held-out scenes, scored by the oracle, compared root by root."""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
