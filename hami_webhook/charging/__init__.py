"""The only writer of quotas: what is charged waits in one queue for each scope, and is written together."""
