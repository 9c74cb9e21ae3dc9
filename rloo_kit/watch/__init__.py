"""What a run looks like, and what is wrong with it."""
