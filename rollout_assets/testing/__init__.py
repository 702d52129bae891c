"""Fakes and tiny campaigns for tests and benchmarks: records that obey every rule, and small real sources."""
