"""How the runtime reaches service deployments: HTTP/1.1, HTTP/2, and discovery."""
