"""The signs puzzle (put + and - between digits so that they make a total) and its demonstrations.

`make 4 Q 6 5 1 6` asks for the signs of `6 ? 5 ? 1 ? 6` that give 4: `+ - -`. Every choice of
signs is a legal answer and is wrong only by its total, so checking a peer means adding up. It is
small enough for a two-layer model to learn to solve, to check and to compare on a CPU.
"""

import random
import re
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import Contract
from debate_protocol.types import Question, TurnRequest
from debate_train.data.source import DataSettings, DataSource, Seeds, Split

WORDS = ("Answer:", "toward")
"""What a word-level tokenizer needs beside its own words (`model.extra_words`)."""
_ANSWER = re.compile(r"Answer: ([-+ ]*[-+])")


_NUMBER = re.compile(r"-?[0-9]{1,4}")
SIGNS = ("+", "-")
_SIGNS_ALONE = re.compile(r"[-+ ]+")


def running_totals(digits: Sequence[int], signs: Sequence[str]) -> list[int]:
    """Return the total after each sign."""
    totals, total = [], digits[0]
    for sign, digit in zip(signs, digits[1:], strict=True):
        total = total + digit if sign == "+" else total - digit
        totals.append(total)
    return totals


@lru_cache(maxsize=65536)
def solutions(digits: tuple[int, ...], target: int) -> tuple[str, ...]:
    """Return every choice of signs that reaches the target, in the order of `product`."""
    choices = product(SIGNS, repeat=len(digits) - 1)
    return tuple(" ".join(s) for s in choices if running_totals(digits, s)[-1] == target)


def wrong_signs(digits: tuple[int, ...], target: int) -> list[str]:
    """Return every choice of signs that misses the target."""
    every = (" ".join(signs) for signs in product(SIGNS, repeat=len(digits) - 1))
    return [signs for signs in every if signs not in solutions(digits, target)]


def read_puzzle(question: Question) -> tuple[tuple[int, ...], int]:
    """Return the digits and the target of a puzzle's question."""
    words = question.text.split()
    return tuple(int(word) for word in words[3:]), int(words[1])


def _puzzle(rng: random.Random, config: "SignsPuzzle") -> str:
    while True:
        digits = tuple(rng.randint(1, config.largest_digit) for _ in range(config.num_digits))
        target = running_totals(digits, [rng.choice(SIGNS) for _ in digits[1:]])[-1]
        if target >= 0 and not (config.one_answer and len(solutions(digits, target)) > 1):
            return f"make {target} Q {' '.join(map(str, digits))}"


@lru_cache(maxsize=65536)
def _with_answers(text: str) -> Question:
    digits, target = read_puzzle(Question(text, text))
    accept = solutions(digits, target)
    meta = {"accept": list(accept), "wrong_answers": wrong_signs(digits, target)}
    return Question(text, text, accept[0], {"kind": "text", **meta})


class SignsPuzzle(DataSettings):
    """Puzzles made as needed; a question's split follows from its text, so splits never meet."""

    type: Literal["signs_puzzle"] = "signs_puzzle"
    num_digits: int = Field(4, ge=3, le=4)
    """Digits of a puzzle."""
    largest_digit: int = Field(9, ge=4, le=9)
    """Digits run from 1 to this; fewer make the sums, and so the puzzle, quicker to learn."""
    one_answer: bool = False
    """Leaves out puzzles that several choices of signs solve, whose right votes would split."""
    seed: int | None = None
    """Seed of the questions, see `debate_train.data.source.Seeds`."""

    def open(self, run_seed: int = 0) -> "SignsPuzzleSource":
        """Return the source of these puzzles in a run with this seed."""
        return SignsPuzzleSource(self, Seeds.of(self.seed, run_seed))


class DrawnSource(DataSource):
    """Questions made as needed, by `draw` from a generator of random numbers.

    A question's split follows from its text, so splits never meet: a tenth is `dev`, one `test`.
    """

    salt: ClassVar[str]
    """What the numbers of one kind of data are drawn with beside the seeds."""
    patience: ClassVar[int] = 20_000
    """Draws without a new question after which a split is taken to hold no more."""

    def __init__(self, config: DataSettings, seeds: Seeds) -> None:
        self.config = config
        self._seeds = seeds

    @abstractmethod
    def draw(self, rng: random.Random) -> Question:
        """Return a question of any split."""

    def batch(self, step: int) -> list[Question]:
        """Return the training questions of a step, distinct, fewer where there are not as many."""
        rng = random.Random(f"{self.salt}/{self._seeds.training}/{step}")
        return self._drawn(rng, "train", self.config.batch_size)

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` distinct questions of a split, always the same ones."""
        rng = random.Random(f"{self.salt}/{name}/{self._seeds.held_out}")
        return self._drawn(rng, name, size)

    def _drawn(self, rng: random.Random, split: Split, size: int) -> list[Question]:
        found: dict[str, Question] = {}
        fruitless = 0
        while len(found) < size and fruitless < self.patience:
            question = self.draw(rng)
            fruitless += 1
            if question.text not in found and _split_of(question.text) == split:
                found[question.text] = question
                fruitless = 0
        return list(found.values())


def _split_of(text: str) -> Split:
    bucket = zlib.crc32(text.encode()) % 10
    return "dev" if bucket == 0 else "test" if bucket == 1 else "train"


class SignsPuzzleSource(DrawnSource):
    """Draws puzzles; also writes the demonstrations of the warm-start."""

    salt = "puzzle"

    def __init__(self, config: SignsPuzzle, seeds: Seeds) -> None:
        super().__init__(config, seeds)
        self._puzzles = config

    def draw(self, rng: random.Random) -> Question:
        """Return a puzzle with its answers."""
        return _with_answers(_puzzle(rng, self._puzzles))

    @property
    def can_demonstrate(self) -> bool:
        """Puzzles can be worked by rule."""
        return True

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Return a worked turn: see `demonstration`."""
        return demonstration(request, errors=errors)


def demonstration(request: TurnRequest, *, errors: bool = True) -> str:
    """Return the turn that a demonstrator writes for this ask.

    With errors, the first proposal of an agent is right with a chance drawn once for each question,
    evenly from 0 to 1, so that judges meet right and wrong candidates in every mixture. From the
    second turn on the demonstrator checks each candidate by its running totals, ranks them by
    the outcome and adopts a right one, or solves the puzzle itself where there is none. A proposal
    of its own that it is shown again is checked and not ranked.

    Under a contract with an answer line it is a turn of an actor or a critic; in a debate before a
    judge what `judged_demonstration` says.

    Sections come in the order of the contract: with `comparison` before `solution` the answer
    follows from the checks. Without a section `evaluation` checks and votes are in `comparison`;
    with a section `analysis` they are there, and `evaluation` has those that found a fault.
    """
    digits, target = read_puzzle(request.question)
    skill = random.Random(f"skill/{request.question.id}").random()
    rng = random.Random(f"turn/{request.seed}")
    right = solutions(digits, target)
    if request.contract is not None and request.contract.kind == "answer_line":
        return exchange_demonstration(request, digits, target, skill if errors else 1.0)
    if is_before_a_judge(request):
        return judged_demonstration(request, digits, target, skill if errors else 1.0)
    claims = {agent: " ".join(text.split()) for agent, text in request.claims.items()}
    candidates = {agent: said for agent, said in claims.items() if _SIGNS_ALONE.fullmatch(said)}
    if not candidates:
        solution = rng.choice(right)
        if errors and rng.random() > skill:
            solution = rng.choice(wrong_signs(digits, target))
        return _turn_text(request.contract, solution, "N/A", "N/A")
    correct = {agent: s in right for agent, s in candidates.items()}
    adoptable = [s for agent, s in candidates.items() if correct[agent]]
    checks = {a: f"Agent {a} {_worked(digits, s, correct[a])}" for a, s in candidates.items()}
    ranks_own = request.contract is not None and request.contract.ranks_own
    others = sorted(candidates.keys() - (set() if ranks_own else {request.agent}))
    votes = "\n".join(_vote(a, b, correct) for a, b in combinations(others, 2)) or "N/A"
    faults = " ".join(checks[agent] for agent in others if not correct[agent]) or "N/A"
    solution, work = rng.choice(adoptable or right), " ".join(checks.values())
    return _turn_text(request.contract, solution, work, votes, faults)


def _turn_text(
    contract: Contract | None, solution: str, evaluation: str, comparison: str, faults: str = "N/A"
) -> str:
    said = {"solution": solution, "evaluation": evaluation, "comparison": comparison}
    sections = tuple(said) if contract is None else contract.sections
    if "analysis" in sections:
        said |= {"analysis": evaluation, "evaluation": faults}
    elif "evaluation" not in sections and evaluation != comparison:
        said["comparison"] = f"{evaluation}\n{comparison}"
    return "\n".join(f"<{name}> {said[name]} </{name}>" for name in sections if name in said)


def _worked(digits: Sequence[int], solution: str, correct: bool) -> str:
    """Return the running totals of a solution, and `ok` or `no`."""
    signs = solution.split()
    work = _steps(digits, signs, running_totals(digits, signs))
    return " ".join([str(digits[0]), *work, "ok" if correct else "no"])


def _vote(a: int, b: int, correct: dict[int, bool]) -> str:
    if correct[a] == correct[b]:
        return f"Agent {a} = Agent {b}"
    return f"Agent {a} > Agent {b}" if correct[a] else f"Agent {b} > Agent {a}"


def exchange_demonstration(
    request: TurnRequest, digits: tuple[int, ...], target: int, skill: float
) -> str:
    """Return the turn of an actor or a critic.

    Args:
        ask: A compact prompt under a contract that ends with an answer line.
        digits: Of the puzzle.
        target: Of the puzzle.
        skill: The chance that an answer of one's own is right.
    """
    rng = random.Random(f"turn/{request.seed}")
    right, wrong = solutions(digits, target), wrong_signs(digits, target)

    def own() -> str:
        return rng.choice(right if rng.random() < skill else wrong)

    shown = {
        agent: found[1]
        for agent, text in request.claims.items()
        if (found := _ANSWER.search(" ".join(text.split())))
    }
    if request.answers:
        return f"Answer: {request.guide or shown.get(1) or shown.get(0) or own()}"
    judged = shown.get(0)
    if judged is None or len(judged.split()) != len(digits) - 1:
        return f"no\nAnswer: {request.guide or own()}"
    is_ok = judged in right if request.guide is None else judged == request.guide
    work = _worked(digits, judged, is_ok)
    return work if is_ok else f"{work}\nAnswer: {request.guide or own()}"


def is_before_a_judge(request: TurnRequest) -> bool:
    """Return whether a turn is a decision, a critique, or a first answer after its totals."""
    sections = () if request.contract is None else request.contract.sections
    if request.answers:
        return sections == ("evaluation", "solution") and not request.claims
    return "decision" in sections or sections == ("evaluation",)


def judged_demonstration(
    request: TurnRequest, digits: tuple[int, ...], target: int, skill: float
) -> str:
    """Return the turn of a proposer, a critic or a judge, who checks one step at most.

    A proposer writes the running totals of its signs, and then these. Half of the wrong answers
    have one false total, after which they reach the target. A critic repeats a step, half of the
    time a false one if there is any, else drawn evenly. The judge says `right` where the totals end
    with the target, unless a critic names a step that stands there and is false: it adds up nothing
    else. Of rivals it takes agent 0 where its totals end so, and else agent 1.

    Args:
        ask: A compact prompt; proposers have the sections `evaluation` and `solution`.
        digits: Of the puzzle.
        target: Of the puzzle.
        skill: The chance that a proposer is right.
    """
    rng = random.Random(f"turn/{request.seed}")
    sections = () if request.contract is None else request.contract.sections
    if request.answers:
        is_right = rng.random() < skill
        signs = rng.choice(solutions(digits, target) if is_right else wrong_signs(digits, target))
        totals = running_totals(digits, signs.split())
        if not is_right and rng.random() < 0.5:
            false = rng.randrange(len(totals))
            slip = target - totals[-1]
            totals = [t + slip if place >= false else t for place, t in enumerate(totals)]
        work = " ".join(_steps(digits, signs.split(), totals))
        return f"<evaluation> {digits[0]} {work} </evaluation>\n<solution> {signs} </solution>"
    steps = _read_steps(request.claims.get(0, ""))
    if "decision" not in sections:
        slips = [step for step in steps if not _is_true(step)]
        step = rng.choice(slips if slips and rng.random() < 0.5 else steps or [""])
        return f"<evaluation> {step} </evaluation>"
    reaches = bool(steps) and int(steps[-1].split()[-1]) == target
    if request.contract is not None and request.contract.name == CHOICE:
        return f"<decision> Agent {0 if reaches else 1} </decision>"
    accused = request.claims.get(1, "").strip()
    is_caught = accused in steps and not _is_true(accused)
    return f"<decision> {'right' if reaches and not is_caught else 'wrong'} </decision>"


def _steps(digits: Sequence[int], signs: Sequence[str], totals: Sequence[int]) -> list[str]:
    return [f"{s} {d} {t}" for s, d, t in zip(signs, digits[1:], totals, strict=True)]


def _read_steps(work: str) -> list[str]:
    """Return the steps of running totals, each with the total before it."""
    words = work.split()
    numbers = words[::3] + words[2::3]
    is_whole = len(words) > 3 and len(words) % 3 == 1 and all(map(_NUMBER.fullmatch, numbers))
    is_whole = is_whole and set(words[1::3]) <= {*SIGNS}
    ends = range(4, len(words) + 1, 3) if is_whole else ()
    return [" ".join(words[end - 4 : end]) for end in ends]


def _is_true(step: str) -> bool:
    before, sign, digit, total = step.split()
    return running_totals((int(before), int(digit)), (sign,)) == [int(total)]
