"""A Gymnasium environment over a campaign's roots: the actor takes views, the oracle rewards them.

Importing this package registers ``rollout_assets/NextBestView-v0``; the extra ``gym`` installs what it needs. The
public names are loaded on first use; ``__init__.pyi`` lists them. Gymnasium 1 has no plug-ins that register themselves.
"""

from rollout_assets.exports import lazy_exports
from rollout_assets.learning.environment.registration import register_environments

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)

register_environments()
