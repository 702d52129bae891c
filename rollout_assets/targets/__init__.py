"""Which object a rollout is about: chosen from what the actor sees, matched to the truth afterwards."""
