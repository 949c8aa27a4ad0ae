"""The contract of the runtime's store: operations, their outcomes, and what is shown."""
