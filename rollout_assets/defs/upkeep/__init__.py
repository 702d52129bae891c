"""Looking after a promoted store and an instance in Dagster: rollback, unpinning, cleaning, and old runs."""
