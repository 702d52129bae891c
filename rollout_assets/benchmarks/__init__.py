"""What ``rollout-assets bench`` runs: figures of this machine, each beside a plain twin measured in the same run."""
