"""Target-conditioned rollouts and their replay stores."""
