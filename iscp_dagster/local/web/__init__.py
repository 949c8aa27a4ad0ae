"""Guards servers on the loopback address against foreign web pages."""
