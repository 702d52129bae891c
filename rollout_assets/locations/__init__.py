"""Where data lies: a folder on a disk, or objects behind a URL."""
