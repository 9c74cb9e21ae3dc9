"""Load, sample and save a policy."""
