"""Many machines for one campaign: what must hold on every node before a backfill, and asking every node for it."""
