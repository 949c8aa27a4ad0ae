"""The contract of the runtime's store: operations, outcomes and views."""
