"""Commands that keep the disk tidy."""
