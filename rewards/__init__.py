"""Token-ID-aware reward functions for TRL: plain callables, pure Python at import."""
