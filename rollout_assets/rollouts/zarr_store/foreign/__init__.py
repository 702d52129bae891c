"""Stores that others wrote: which schema they have, who wrote them, what they lack, and how to make them ours."""
