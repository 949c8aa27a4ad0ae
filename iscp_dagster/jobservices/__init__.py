"""Services that drive this deployment's jobs, for handlers and programs that invoke them."""
