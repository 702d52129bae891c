"""A campaign in object storage: what lies there under which key, this machine's copy of it, and how it is published."""
