"""Plots of an evaluation as SVG: accuracy by round, and accuracy by sampled tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from debate_train.report.charts import Series, line_drawing, parts_of

Points = Sequence[Mapping[str, Any]]
"""A curve as `results.json` has it."""
Line = Sequence[tuple[float, float]]
_SINGLE = "maj@k"
_BY_TOKENS = {"debate/majority": "debate", "debate/central": "the center"}
_BY_ROUND = {"debate/majority": "majority", "debate/agent": "one agent"} | {
    "debate/central": "the center"
}
"""Curves of single replies and of debates, as modes name them, each with the label of its line."""
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_COLOUR = re.compile(r"(--[\w-]+):\s*(#[0-9a-f]+)")
_PLAIN = ("", "direct", "replies")
"""Modes that a label need not name."""


def plots(policies: Mapping[str, Mapping[str, Points]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each plot with its SVG; none of what has no points.

    Each policy has the rounds of all its modes, and their accuracy beside sampled tokens. Several
    policies have a plot for each mode, with a line for each (SDRL, figure 1).

    Args:
        policies: By name the curves of `results.json`: points by the full name of a curve.
    """
    for policy, curves in policies.items():
        by_round = [(label, _rounds(points)) for label, points in _named(curves, _BY_ROUND)]
        yield from _drawn(f"{policy}-accuracy_by_round", "Accuracy by round", by_round, "round")
        by_tokens = [
            (label, [(point["tokens"], point["mean"]) for point in points])
            for label, points in _named(curves, {_SINGLE: "majority of replies"} | _BY_TOKENS)
            if all(point["tokens"] is not None for point in points)
        ]
        title = "Accuracy by sampled tokens"
        yield from _drawn(f"{policy}-accuracy_by_tokens", title, by_tokens, "tokens")
    by_mode: dict[str, list[tuple[str, Line]]] = {}
    for policy, curves in policies.items():
        for label, points in _named(curves, _BY_ROUND):
            by_mode.setdefault(label, []).append((policy, _rounds(points)))
    for label, lines in by_mode.items():
        if len(policies) > 1:
            name = "policies-" + re.sub(r"[^\w.@+-]+", "_", label)
            yield from _drawn(name, f"Accuracy by round, {label}", lines, "round")


def _rounds(points: Points) -> Line:
    return [(point["x"] + 1, point["mean"]) for point in points]


def _drawn(
    name: str, title: str, lines: Sequence[tuple[str, Line]], unit: str
) -> Iterator[tuple[str, str]]:
    """Yield as many drawings as all lines need."""
    series = [Series(label, tuple(points)) for label, points in lines]
    for number, (said, part) in enumerate(parts_of(title, series), 1):
        yield f"{name}_{number}" if number > 1 else name, _svg(said, part, unit)


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
