"""Replay data for next-best-view learning: from VIN source rows to a validated, promoted ``rollouts.zarr``."""
