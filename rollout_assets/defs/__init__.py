"""The Dagster face of the platform: assets, checks, automation and jobs of every campaign, thin over the rooms."""
