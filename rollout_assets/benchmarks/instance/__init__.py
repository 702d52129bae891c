"""What a real Dagster instance, daemon and web server cost."""
