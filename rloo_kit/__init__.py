"""rloo-kit."""
