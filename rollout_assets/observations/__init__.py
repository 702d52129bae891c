"""What an actor knows at a state, as arrays for a policy. Nothing of the truth is in these types."""
