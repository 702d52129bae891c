"""What must not get lost: inputs that vanish, rows that readers have, and scenes that belong to one split."""
