"""``make gpu-check``: does the kit compute, fit, run fast and clean up on this GPU?  At most nine minutes, offline.

checks.py lists the checks, runner.py runs them, report.py writes the results; correct.py with its reference plain.py,
memory.py, speed.py and hygiene.py measure; four_bit.py keeps the faster of two settings.  Nothing here says how well a
real policy learns: weights are random.
"""
