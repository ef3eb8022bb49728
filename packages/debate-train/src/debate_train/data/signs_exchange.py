"""The signs puzzle between an actor and a critic: what a demonstrator writes for their prompts.

The actor answers with a line `Answer: + - -`. The critic works out the running totals of that
answer and ends with `ok`, or with `no` and an answer of its own, which the actor then adopts. Asked
to speak `toward` an answer, the actor gives it; the critic calls it ok where the actor has given
it, and otherwise says no and names it, whatever the totals are.
"""

import random
import re
from collections.abc import Sequence
from itertools import accumulate, product

from debate_protocol.roles import CRITIC
from debate_protocol.types import Ask

WORDS = ("Answer:", "toward")
"""What a word-level tokenizer needs beside its own words (`model.extra_words`)."""
_ANSWER = re.compile(r"Answer: ([-+ ]*[-+])")
_TOWARD = re.compile(r"^toward : ([-+ ]+)$", re.MULTILINE)


def exchange_demonstration(
    ask: Ask, digits: Sequence[int], right: Sequence[str], skill: float
) -> str:
    """Return the turn of an actor or a critic.

    Args:
        ask: A compact prompt under a contract that ends with an answer line.
        digits: Of the puzzle.
        right: All its solutions.
        skill: The chance that an answer of one's own is right.
    """
    rng = random.Random(f"turn/{ask.seed}")
    every = [" ".join(signs) for signs in product("+-", repeat=len(digits) - 1)]
    wrong = [signs for signs in every if signs not in right]

    def own() -> str:
        return rng.choice(right if rng.random() < skill else wrong)

    prompt = ask.messages[-1]["content"]
    guide = _TOWARD.search(prompt)
    shown = {
        line.split(" : ")[0]: found[1]
        for line in prompt.splitlines()
        if line.startswith("Agent ") and (found := _ANSWER.search(line))
    }
    if ask.agent != CRITIC:
        if guide is not None:
            return f"Answer: {guide[1]}"
        return f"Answer: {shown.get('Agent 1') or shown.get('Agent 0') or own()}"
    judged = shown.get("Agent 0")
    if judged is None or len(judged.split()) != len(digits) - 1:
        return f"no\nAnswer: {own() if guide is None else guide[1]}"
    signed = [f"{sign} {digit}" for sign, digit in zip(judged.split(), digits[1:], strict=True)]
    totals = accumulate([digits[0], *(int(one.replace(" ", "")) for one in signed)])
    next(totals)
    work = [str(digits[0]), *(f"{one} {total}" for one, total in zip(signed, totals, strict=True))]
    is_ok = judged in right if guide is None else judged == guide[1]
    if is_ok:
        return " ".join([*work, "ok"])
    return " ".join([*work, "no"]) + f"\nAnswer: {own() if guide is None else guide[1]}"
