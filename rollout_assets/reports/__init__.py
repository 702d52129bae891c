"""Pictures and reports for people."""
