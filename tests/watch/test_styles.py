"""Styles of curves: none alike before all are given, and told apart without colour or with another sense of it."""

import itertools
import math

import pytest

from rloo_kit.watch import styles

KINDS = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Machado, Oliveira and Fernandes (2009), table of severity 1.0: what is seen of linear red, green and blue."""

XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)
Three = tuple[float, ...]


def linear(colour: str) -> Three:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def times(matrix: tuple[Three, ...], vector: Three) -> Three:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def lab(rgb: Three) -> Three:
    """CIE 1976 L*a*b*, in which equal distances look about equal; 2.3 is just noticed."""
    xyz = (max(0.0, v) / w for v, w in zip(times(XYZ, rgb), WHITE, strict=True))
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_the_colours_are_told_apart_in_every_kind_of_colour_blindness(kind: str) -> None:
    seen = [linear(colour) for colour in (*styles.COLOURS, styles.PLAIN.colour.replace("black", "#000000"))]
    seen = [times(KINDS[kind], rgb) for rgb in seen] if kind in KINDS else seen
    assert min(math.dist(lab(a), lab(b)) for a, b in itertools.combinations(seen, 2)) > 8


def test_the_colours_stand_out_from_white() -> None:
    for colour in styles.COLOURS:
        assert 1.05 / (times(XYZ, linear(colour))[1] + 0.05) > 2, colour


def test_no_two_styles_are_alike_in_grey_before_all_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(styles, "_given", {})
    given = [styles.style_of(f"reward {n}") for n in range(styles.COUNT)]
    assert len({(one.dash, one.mark, one.marked) for one in given}) == styles.COUNT
    assert styles.style_of("reward 2") is given[2]
    assert not any(one.marked for one in given[:4])
    assert styles.style_of("one more") not in given
