"""Rollouts for others: the service that runs requests, and the HTTP server around it."""
