#!/usr/bin/env bash
# reasoning-gym 0.1.25, task knight_swap: whether the knights can be swapped on a board that the
# question prints. One would expect the answer "No" to be right for that board. For a puzzle that
# shall be impossible the library removes one move between two squares and solves the rest; the
# question prints the squares and not the removed move. A search by the printed rules alone swaps
# the knights in 5 of the first 11 questions with the answer "No" (seed 0), and the library scores
# that solution 0 and "No" 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
"$folder/venv/bin/python" - <<'PYTHON'
import json
from collections import deque
from importlib.metadata import version

import reasoning_gym


def read_board(question: str) -> dict[str, str]:
    """Read the squares of the printed board: "w", "B" or "." for each."""
    lines = question.split("```")[1].strip("\n").splitlines()
    columns = lines[0].split()
    squares = {}
    for line in lines[2::2]:
        number, *cells = line.split("|")
        for column, cell in zip(columns, cells):
            if cell.strip():
                squares[column + number.strip()] = cell.strip()
    return squares


def is_knight_move(start: str, end: str) -> bool:
    return {abs(ord(start[0]) - ord(end[0])), abs(int(start[1]) - int(end[1]))} == {1, 2}


def swap(squares: dict[str, str], first: str) -> list[str] | None:
    """Search breadth first for moves that swap the colors, which move in turn."""
    start = (tuple(sorted(squares.items())), first)
    goal = {s: {"w": "B", "B": "w", ".": "."}[piece] for s, piece in squares.items()}
    before = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        board, color = dict(state[0]), state[1]
        if board == goal:
            moves = []
            while before[state]:
                state, move = before[state]
                moves.append(move)
            return moves[::-1]
        for origin, target in ((a, b) for a in board for b in board):
            if board[origin] == color and board[target] == "." and is_knight_move(origin, target):
                moved = board | {origin: ".", target: color}
                after = (tuple(sorted(moved.items())), "B" if color == "w" else "w")
                if after not in before:
                    before[after] = (state, f"{color},{origin},{target}")
                    queue.append(after)
    return None


task = reasoning_gym.create_dataset("knight_swap", seed=0, size=60)
impossible = [entry for entry in task if entry["answer"] == "No"]
swapped = 0
for entry in impossible:
    first = "w" if "w moves first" in entry["question"] else "B"
    moves = swap(read_board(entry["question"]), first)
    if moves is not None:
        swapped += 1
        assert task.score_answer("No", entry) == 1.0
        assert task.score_answer(json.dumps(moves), entry) == 0.0
print("reasoning-gym", version("reasoning-gym"))
print(f"expected 0 questions with the answer No that can be swapped; seen: {swapped} of {len(impossible)}")
assert (swapped, len(impossible)) == (5, 11), "this has changed"
PYTHON
