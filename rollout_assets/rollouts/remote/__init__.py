"""Talking to rollout servers: messages, their codec, the client and its retries. Manager and collector use it."""
