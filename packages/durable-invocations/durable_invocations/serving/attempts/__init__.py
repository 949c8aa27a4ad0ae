"""One attempt of an invocation, from the journal to the handler and back."""
