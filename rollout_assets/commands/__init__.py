"""The verbs of `rollout-assets`, one file per noun. They parse, call one function of a room, and print."""
