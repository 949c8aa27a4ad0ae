"""The client of the runtime of invocations: requests, answers and errors."""
