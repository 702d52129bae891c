"""Standalone Zarr replay store for finite-candidate rollout traces: the public names, loaded on first use.

A store holds compact row tables for rollout chains, steps, full-shell candidates, VIN source rows, lineage and targets,
and the derived dense training view ``q_h``. Writer, reader and validator work from one schema object.
"""

from rollout_assets.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
