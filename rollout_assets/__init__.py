"""Replay data for next-best-view learning: from VIN source rows to a validated, promoted ``rollouts.zarr``.

The public names are loaded on first use, so importing the package costs little; ``__init__.pyi`` lists them.
What the package has to say goes to the standard logger ``rollout_assets``, which is silent until a handler is added.
"""

import logging

from rollout_assets.exports import lazy_exports

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)

logging.getLogger(__name__).addHandler(logging.NullHandler())
