"""Looking after a promoted store and an instance in Dagster: rollback, unpinning, cleaning, and the runs of long ago."""
