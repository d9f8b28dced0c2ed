"""The two servers headrace brings along: NATS for the queues, Valkey for the KV blocks, each started from its wheel.

Knows nothing of stages; `tether` is also what the supervisor starts the stages with.
"""
