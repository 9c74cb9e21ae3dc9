"""How good a policy is, and what training changed."""
