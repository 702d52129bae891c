"""From finished shards to the rows of a promoted store: which shards, and how they are merged side by side."""
