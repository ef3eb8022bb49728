"""Which two first answers a self-debate puts against each other."""

import random
from collections.abc import Callable, Mapping
from typing import Literal

Pairing = Literal["rand", "freq"]


def draw_pair(
    answers: Mapping[int, str | None],
    pairing: Pairing,
    same_answer: Callable[[str, str], bool],
    chance: random.Random,
) -> tuple[int, int] | None:
    """Return two of the numbered first turns in the order in which they are shown.

    `rand` draws two turns. `freq` draws a turn of each of the two most common answers, equally
    common answers in random order; a turn without an answer belongs to none, and where fewer than
    two answers were given two turns are drawn as in `rand`. The order is random.

    Args:
        answers: Each turn's answer, None where none can be read.
        pairing: The rule.
        same_answer: Decides which answers are the same.
        chance: Draws.

    Returns:
        None when there are fewer than two turns.

    Source: SDRL (paper), section 5.2, "Debate pair construction".
    """
    turns = list(answers)
    if len(turns) < 2:
        return None
    if pairing == "freq":
        classes = _classes(answers, same_answer)
        if len(classes) > 1:
            chance.shuffle(classes)
            classes.sort(key=len, reverse=True)  # stable: equals stay in the order drawn
            pair = [chance.choice(classes[0]), chance.choice(classes[1])]
            chance.shuffle(pair)
            return pair[0], pair[1]
    first, second = chance.sample(turns, 2)
    return first, second


def _classes(
    answers: Mapping[int, str | None], same_answer: Callable[[str, str], bool]
) -> list[list[int]]:
    """Return the turns of each answer; a turn joins the first class that its answer fits."""
    classes: list[tuple[str, list[int]]] = []
    for turn, answer in answers.items():
        if answer is None:
            continue
        for member, turns in classes:
            if same_answer(member, answer):
                turns.append(turn)
                break
        else:
            classes.append((answer, [turn]))
    return [turns for _, turns in classes]
