"""Writes questions that are easier to check than to solve: numbers to sort.

    python -m benchmarks.learning.sorting_rows --output runs/sorting.jsonl

Each row has 5 to 7 numbers of 1 to 99 in a drawn order, the sorted list, wrong lists, and a worked
check of each list: walk along it until a number does not rise, then look for each number asked.
Wrong lists have numbers exchanged, moved, lost, repeated or changed, as those of small models do.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

SEED = 7
NUM_ROWS = 14_000
LENGTHS = (5, 6, 7)
LARGEST = 99


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in rows()]
    arguments.output.write_text("".join(lines), encoding="utf-8")
    print(f"{arguments.output}: {len(lines):,} questions")


def rows() -> Iterator[dict[str, object]]:
    """Yield the rows, always the same; no two have the same question."""
    rng = random.Random(SEED)
    questions: set[str] = set()
    while len(questions) < NUM_ROWS:
        numbers = rng.sample(range(1, LARGEST + 1), rng.choice(LENGTHS))
        question = f"Sort from small to large: {as_text(numbers)}"
        if question in questions or numbers == sorted(numbers):
            continue
        questions.add(question)
        right = sorted(numbers)
        wrong_checks = {}
        for change in (exchanged, exchanged, moved, moved, lost, lost, repeated, changed):
            answer = change(right, rng)
            if answer != right:
                wrong_checks[as_text(answer)] = check(answer, numbers)
        yield {
            "question": question,
            "answer": as_text(right),
            "wrong_answers": list(wrong_checks),
            "worked_checks": {as_text(right): check(right, numbers), **wrong_checks},
            "kind": "text",
        }


def as_text(numbers: Sequence[int]) -> str:
    """Write a list of numbers."""
    return " ".join(map(str, numbers))


def check(answer: Sequence[int], numbers: Sequence[int]) -> str:
    """Write a check, up to the first number that does not rise, or that the answer lacks."""
    steps = [str(answer[0])]
    for previous, number in pairwise(answer):
        rises = number > previous
        steps.append(f"{number} {'up' if rises else 'down'}")
        if not rises:
            return " ".join(steps)
    steps.append("all up;")
    for number in numbers:
        is_there = number in answer
        steps.append(f"{number} {'yes' if is_there else 'no'}")
        if not is_there:
            break
    return " ".join(steps)


def exchanged(numbers: list[int], rng: random.Random) -> list[int]:
    """Exchange two neighbors."""
    index = rng.randrange(len(numbers) - 1)
    first, second = numbers[index : index + 2]
    return [*numbers[:index], second, first, *numbers[index + 2 :]]


def moved(numbers: list[int], rng: random.Random) -> list[int]:
    """Move a number to another place."""
    index = rng.randrange(len(numbers))
    others = numbers[:index] + numbers[index + 1 :]
    others.insert(rng.randrange(len(numbers)), numbers[index])
    return others


def lost(numbers: list[int], rng: random.Random) -> list[int]:
    """Leave a number out."""
    index = rng.randrange(len(numbers))
    return numbers[:index] + numbers[index + 1 :]


def repeated(numbers: list[int], rng: random.Random) -> list[int]:
    """Write a number twice."""
    index = rng.randrange(len(numbers))
    return numbers[: index + 1] + numbers[index:]


def changed(numbers: list[int], rng: random.Random) -> list[int]:
    """Change a number by 1 or 10, and sort again."""
    index = rng.randrange(len(numbers))
    other = abs(numbers[index] + rng.choice((-10, -1, 1, 10)))
    return sorted([*numbers[:index], other, *numbers[index + 1 :]])


if __name__ == "__main__":
    main()
