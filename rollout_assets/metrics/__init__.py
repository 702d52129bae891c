"""Numbers over many rollouts: summaries, estimators with their intervals, and the metrics of result lines."""
