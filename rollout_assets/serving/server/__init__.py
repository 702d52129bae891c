"""The HTTP server around a rollout service: routes, limits, streams, and the processes that run it."""
