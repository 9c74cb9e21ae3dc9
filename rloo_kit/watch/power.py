"""How small a change could have been seen: what a two-sided test at 5 % finds in four of five cases."""

import math
from statistics import NormalDist

SURE, FOUND = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
"""Standard errors, 1.96 and 0.84: for a level of 5 %, and for a power of 80 %."""


def smallest_change(error: float) -> float:
    """Of a mean, whose difference between two windows has this standard error (Cohen 1988, chapter 2)."""
    return (SURE + FOUND) * error


def smallest_gain(problems: int, accuracy: float = 0.5, alike: float = 0.0) -> float:
    """Of the accuracy on as many problems, each answered once before training and once after.

    McNemar's test, where a share psi of the answers differs, needs n = ((1.96 sqrt(psi) + 0.84 sqrt(psi - gain^2)) /
    gain)^2 problems (Connor 1987, Biometrics 43, 207).  With answers to one problem that correlate by ``alike`` psi is
    (p (1 - q) + q (1 - p)) (1 - alike), for an accuracy of p before and q after; 0 compares two sets of problems.

    >>> round(smallest_gain(200), 2), round(smallest_gain(200, alike=0.3), 2), round(smallest_gain(1319), 2)
    (0.14, 0.12, 0.05)
    """
    gain = 0.0
    for _ in range(20):  # a fixed point: the gain stands on both sides
        after = accuracy + gain
        psi = (accuracy * (1 - after) + after * (1 - accuracy)) * (1 - alike)
        needed = SURE * math.sqrt(psi) + FOUND * math.sqrt(max(0.0, psi - gain**2))
        gain = min(1 - accuracy, needed / math.sqrt(problems))
    return gain
