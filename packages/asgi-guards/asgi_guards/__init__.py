"""What servers on this machine have in common: guards against foreign web pages, and bounds."""
