"""Plots of an evaluation as SVG: accuracy by round, and accuracy by sampled tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from debate_train.report.charts import Series, line_drawing

Points = Sequence[Mapping[str, Any]]
"""A curve as `results.json` has it."""
_MAJORITY, _AGENT, _SINGLE = "debate/majority", "debate/agent", "maj@k"
"""Curves of debates and of single replies, as modes name them."""
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_COLOUR = re.compile(r"(--[\w-]+):\s*(#[0-9a-f]+)")
_PLAIN = ("", "direct", "replies")
"""Modes that a label need not name."""


def plots(curves: Mapping[str, Points]) -> Iterator[tuple[str, str]]:
    """Yield the name of each plot of one policy with its SVG; none of what has no points.

    Args:
        curves: Of `results.json`: points by the full name of a curve.
    """
    by_round = [
        Series(label, tuple((point["x"] + 1, point["mean"]) for point in points))
        for label, points in _named(curves, {_MAJORITY: "majority", _AGENT: "one agent"})
    ]
    if by_round:
        yield "accuracy_by_round", _svg("Accuracy by round", by_round, "round")
    by_tokens = [
        Series(label, tuple((point["tokens"], point["mean"]) for point in points))
        for label, points in _named(curves, {_SINGLE: "majority of replies", _MAJORITY: "debate"})
        if all(point["tokens"] is not None for point in points)
    ]
    if by_tokens:
        yield "accuracy_by_tokens", _svg("Accuracy by sampled tokens", by_tokens, "tokens")


def _named(curves: Mapping[str, Points], shown: Mapping[str, str]) -> Iterator[tuple[str, Points]]:
    """Yield the wanted curves of all modes, each with its label."""
    for name, points in curves.items():
        for curve, label in shown.items():
            mode, found, _ = f"/{name}/".partition(f"/{curve}/")
            if found and points:
                own = mode.strip("/").removeprefix("eval").strip("/")
                yield (f"{own}: {label}" if own not in _PLAIN else label), points


def _svg(title: str, series: Sequence[Series], unit: str) -> str:
    """Return a drawing with its colours written out: few programs but browsers know variables."""
    drawn = str(line_drawing(title, series, "share", unit))
    light = dict(reversed(_COLOUR.findall(drawn)))  # Those of the dark scheme come second.
    return _VARIABLE.sub(lambda found: light.get(found[1], found[0]), drawn)
