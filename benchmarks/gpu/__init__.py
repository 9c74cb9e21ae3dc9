"""``make gpu-check``: does the kit compute, fit, run fast and clean up on this GPU?  Offline, within nine minutes.

checks.py lists the checks and parts, runner.py runs them, report.py writes the results; correct.py with its reference
plain.py, memory.py, speed.py, hygiene.py and learns.py measure; four_bit.py keeps the faster of two settings.  Only
learns.py says how well a real policy learns: other weights are random, or the tiny policy's.
"""
