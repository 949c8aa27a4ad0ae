"""`iscp invocations`: durable invocations, their journals, and the runtime that drives them."""
