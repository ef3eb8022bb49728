"""Sums over debates and questions, of which every statistic is a ratio or a correlation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

Moments = tuple[float, ...]
"""Sum and weight of a ratio; or of points: their number and the sums of x, y, x², y² and xy."""


@dataclass(slots=True)
class Sums:
    """Per statistic what was summed so far."""

    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Observe `value`, which is a mean, or sum, over `weight` cases."""
        self.join(name, (value, weight))

    def add_points(self, name: str, points: Iterable[tuple[float, float]]) -> None:
        """Observe points whose correlation is wanted."""
        for x, y in points:
            self.join(name, (1.0, x, y, x * x, y * y, x * y))

    def join(self, name: str, moments: Moments) -> None:
        """Add moments of the same statistic."""
        known = self.moments.get(name)
        self.moments[name] = moments if known is None else tuple(map(add, known, moments))

    def merge(self, other: "Sums") -> None:
        """Add all that another has observed."""
        for name, moments in other.moments.items():
            self.join(name, moments)

    def values(self) -> dict[str, float]:
        """Return the statistics that are defined."""
        found = {name: value_of(moments) for name, moments in self.moments.items()}
        return {name: value for name, value in found.items() if value is not None}


def value_of(moments: Sequence[float]) -> float | None:
    """Return a ratio, or Pearson's correlation; None without weight or without spread."""
    if len(moments) == 2:
        return moments[0] / moments[1] if moments[1] > 1e-12 else None
    count, x, y, xx, yy, xy = moments
    if count < 2:
        return None
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    if spread_x < 1e-9 or spread_y < 1e-9:
        return None
    return float((xy - x * y / count) / (spread_x * spread_y) ** 0.5)


def pooled(rows: Iterable[Mapping[str, Moments]]) -> Sums:
    """Return the sums of all rows together."""
    total = Sums()
    for row in rows:
        total.merge(Sums(dict(row)))
    return total
