"""Keeping the disk tidy, and the catalog right about what lies there."""
