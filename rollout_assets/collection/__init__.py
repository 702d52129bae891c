"""Batch collection: many rollouts, here or on a server, one JSON line each; their aggregation; and the server."""
