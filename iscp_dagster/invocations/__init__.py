"""Durable, journaled invocations of handlers: the protocol, both of its sides, and the runtime."""
