"""Tables of a finished evaluation: figures of each policy, and votes won of each opponent."""

import re
from collections.abc import Iterator, Mapping

from debate_report.json_values import as_list, as_mapping, as_mappings, finite

AGAINST_OPPONENT = re.compile(r"eval/against-(.+?)/learned/vote_win_rate(?:/(seat_\d+))?")
ALL_SEATS = "votes won"


def figure_table(results: Mapping[str, object]) -> Iterator[list[str]]:
    """Yield the head and the rows of an evaluation: a column of means for each policy."""
    policies = as_mappings(results.get("policies"))
    labels = as_mapping(results.get("rows"))
    yield ["measure", *(str(policy.get("name", "")) for policy in policies)]
    for name in map(str, as_list(results.get("listed")) or labels):
        cells = []
        for policy in policies:
            figure = as_mapping(as_mapping(policy.get("figures")).get(name))
            mean = finite(figure.get("mean"))
            low = finite(figure.get("low"))
            high = finite(figure.get("high"))
            cell = "–" if mean is None else f"{mean:.3f}"
            if mean is not None and low is not None and high is not None:
                cell += f" [{low:.3f}, {high:.3f}]"
            cells.append(cell)
        yield [str(labels.get(name) or name), *cells]


def cross_play_tables(results: Mapping[str, object]) -> Iterator[list[list[str]]]:
    """Yield tables of votes won by policies from opponents: over all seats, then of each."""
    cells_by_seat: dict[str, dict[tuple[str, str], str]] = {}
    for policy in as_mappings(results.get("policies")):
        policy_name = str(policy.get("name"))
        for name, figure in as_mapping(policy.get("figures")).items():
            match = AGAINST_OPPONENT.fullmatch(name)
            mean = finite(as_mapping(figure).get("mean"))
            if match is not None and mean is not None:
                opponent = match[1]
                seat = (match[2] or ALL_SEATS).replace("_", " ")
                cells_by_seat.setdefault(seat, {})[policy_name, opponent] = f"{100 * mean:.0f} %"
    seats = sorted(cells_by_seat, key=lambda seat: (seat != ALL_SEATS, seat))
    for seat in seats:
        cells = cells_by_seat[seat]
        # Policies and opponents keep the order of the evaluation; a set has none.
        policy_names = dict.fromkeys(name for name, _ in cells)
        opponents = list(dict.fromkeys(opponent for _, opponent in cells))
        table = [[f"{seat}, against", *opponents]]
        for policy_name in policy_names:
            row = [cells.get((policy_name, opponent), "–") for opponent in opponents]
            table.append([policy_name, *row])
        yield table
