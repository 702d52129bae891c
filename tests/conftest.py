"""Shared by all tests: hypothesis keeps no files in the working tree, and runs are the same every time."""

from hypothesis import settings

settings.register_profile("repository", database=None, derandomize=True, deadline=None)
settings.load_profile("repository")
