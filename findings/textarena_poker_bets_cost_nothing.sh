#!/usr/bin/env bash
# textarena 0.7.4, KuhnPoker-v0, a game for self-play. Its prompt says that a bet and a call each
# add 1 chip to the pot, so one would expect a called bet to win 2 chips and a fold to lose 1. No
# chip ever follows the antes: every line of play wins or loses 1, a call is free, and a fold never
# better. IndianPoker-v0 moves its chips. There, one would expect both players to act in a round
# before a showdown: after a round that ended in two checks, the first check of the next round ends
# it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet textarena==0.7.4
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import textarena

ANTE = 1
CHIPS_OF_WINNER = {
    "[check] [check]": 1,
    "[bet] [fold]": 1,
    "[bet] [call]": 2,
    "[check] [bet] [call]": 2,
}


def play(game: str, moves: str) -> dict:
    """Play moves from a fixed seed, and give the state that the game ends in."""
    env = textarena.make(f"{game}-v0-raw")
    env.reset(num_players=2, seed=1)
    for move in moves.split():
        env.step(move)
    return env.state.game_state


print("textarena", version("textarena"))
won = {}
for moves in CHIPS_OF_WINNER:
    chips_of_next_round = play("KuhnPoker", moves)["player_chips"].values()
    won[moves] = max(chips_of_next_round) + ANTE
    print(f"  KuhnPoker {moves}: expected {CHIPS_OF_WINNER[moves]} won, seen {won[moves]}")
pots = [play("KuhnPoker", moves)["pot"] for moves in ("", "[bet]", "[check] [bet]")]
print("  pot before and after a bet:", pots)
rounds = [play("IndianPoker", "[check] " * count)["current_round"] for count in range(5)]
print(f"  IndianPoker, round after 0 to 4 checks: expected [1, 1, 2, 2, 3], seen {rounds}")
assert set(won.values()) == {1} and set(pots) == {2}, "what was seen has changed"
assert rounds == [1, 1, 2, 3, 4], "what was seen has changed"
PYTHON
