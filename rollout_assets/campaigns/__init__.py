"""From a plan to a promoted store: shards, their markers and checks, promotion and its versions."""
