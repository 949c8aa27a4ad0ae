"""Who may ask a server: hosts and origins."""
