"""The chain of a shard in Dagster: one step, what it does with each shard, and what is recorded of it."""
