"""Replay data for next-best-view learning: from VIN source rows to a validated, promoted ``rollouts.zarr``.

The names below are loaded on first use, so importing the package costs nothing; ``__init__.pyi`` lists them.
"""

from rollout_assets.exports import lazy_exports

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
