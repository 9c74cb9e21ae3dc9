"""Check that the kit computes correctly, fits in memory, runs fast and cleans up on this GPU (``make gpu-check``).

It runs offline, for 11 minutes at most.  checks.py lists the checks, runner.py runs them, and report.py writes the
results.  correct.py (with its reference plain.py), memory.py, speed.py, hygiene.py and learns.py measure; four_bit.py
keeps the faster of two settings.  Only learns.py trains a real policy: other weights are random or the tiny policy's.
"""
