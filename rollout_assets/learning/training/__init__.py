"""Training of policies: what is read, what is made small, how well views are chosen, and the run that can be stopped.

Torch is imported when one of the names is first used.
"""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
