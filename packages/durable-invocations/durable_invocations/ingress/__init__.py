"""HTTP of the runtime: who invokes handlers, completes awakeables, and administers invocations."""
