"""How weights reach a server."""
