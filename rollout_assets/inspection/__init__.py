"""What is in a rollout store, what was lost on the way, and what looks wrong: polars frames over whole stores.

Every function takes a ``RolloutZarrStoreReader`` and reads only the columns it needs. ``frame.to_dicts()`` gives rows.
"""
