"""What is spoken with a rollout server: messages, their codec, and the client. The manager and the collector use it."""
