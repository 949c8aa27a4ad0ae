"""HTTP of the runtime: invokes handlers, completes awakeables, administers invocations."""
