"""From stores to a policy: datasets with every trainable state once per epoch, training, and checkpoints.

Torch is imported when one of the names is first used.
"""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
