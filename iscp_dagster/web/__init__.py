"""Guards servers on this machine against foreign web pages."""
