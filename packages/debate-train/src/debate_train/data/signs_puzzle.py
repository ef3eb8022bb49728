"""The signs puzzle (put + and - between digits to make a total) and worked turns on it.

`make 4 Q 6 5 1 6` asks for signs in `6 ? 5 ? 1 ? 6` to give 4: `+ - -`. Every choice of
signs is a legal answer and is wrong only by the total, so checking a peer means adding up. It is
small enough for a two-layer model to learn to solve, to check and to compare on a CPU.
"""

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms import ProposalProblem
from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import Contract
from debate_protocol.types import QUESTION, VERDICT, Question, TurnRequest
from debate_train.data.demonstrations import vote_line
from debate_train.data.drawn_source import DrawnSource
from debate_train.data.source import DataSettings, Seeds

SIGNS = ("+", "-")
_SECTIONS = ("solution", "evaluation", "comparison")
WORDS = ("Answer:", "toward")
"""Words that a word-level tokenizer needs in addition to its own (`model.extra_words`)."""
ANSWER_LINE = re.compile(r"Answer: ([-+ ]*[-+])")
NUMBER = re.compile(r"-?[0-9]{1,4}")
PUZZLE = re.compile(r"make (0|[1-9][0-9]?) Q ([1-9](?: [1-9]){2,3})")
"""A puzzle as `draw` writes it: the total, then the digits."""


def running_totals(digits: Sequence[int], signs: Sequence[str]) -> list[int]:
    """Compute the total after each sign."""
    total = digits[0]
    totals = []
    for sign, digit in zip(signs, digits[1:], strict=True):
        if sign == "+":
            total += digit
        else:
            total -= digit
        totals.append(total)
    return totals


@lru_cache(maxsize=65536)
def solutions(digits: tuple[int, ...], target: int) -> tuple[str, ...]:
    """List every choice of signs to reach the target, in the order of `product`."""
    reaching = []
    for signs in product(SIGNS, repeat=len(digits) - 1):
        if running_totals(digits, signs)[-1] == target:
            reaching.append(" ".join(signs))
    return tuple(reaching)


def wrong_signs(digits: tuple[int, ...], target: int) -> list[str]:
    """List every wrong choice of signs."""
    missing = []
    for signs in product(SIGNS, repeat=len(digits) - 1):
        if running_totals(digits, signs)[-1] != target:
            missing.append(" ".join(signs))
    return missing


def read_puzzle(question: Question) -> tuple[tuple[int, ...], int]:
    """Parse the digits and the target of a puzzle's question."""
    # The text is `make TARGET Q DIGIT DIGIT …`.
    words = question.text.split()
    digits = tuple(int(word) for word in words[3:])
    target = int(words[1])
    return digits, target


class SignsPuzzle(DataSettings):
    """Puzzles made as needed; the text of a question decides the split, so splits never meet."""

    checks_proposals: ClassVar[bool] = True

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
        """Open the source of these puzzles in a run with this seed."""
        return SignsPuzzleSource(self, Seeds.of(self.seed, run_seed))


class SignsPuzzleSource(DrawnSource):
    """Draws puzzles; also writes the demonstrations of the warm-start."""

    salt = "puzzle"

    def __init__(self, config: SignsPuzzle, seeds: Seeds) -> None:
        super().__init__(config, seeds)
        self._puzzles = config

    def draw(self, rng: random.Random) -> Question:
        """Draw a puzzle with all answers."""
        config = self._puzzles
        while True:
            digits = tuple(rng.randint(1, config.largest_digit) for _ in range(config.num_digits))
            # The target comes from drawn signs, so that every puzzle has a solution.
            signs = [rng.choice(SIGNS) for _ in digits[1:]]
            target = running_totals(digits, signs)[-1]
            if target < 0:
                continue
            # Several right answers would split the votes.
            if config.one_answer and len(solutions(digits, target)) > 1:
                continue
            return _question(f"make {target} Q {' '.join(map(str, digits))}")

    @property
    def can_demonstrate(self) -> bool:
        """Whether turns can be worked by rule: puzzles always can."""
        return True

    def check_proposal(self, text: str) -> Question | ProposalProblem:
        """Read an agent's puzzle: its digits are allowed and some signs reach its total."""
        config = self._puzzles
        # Only the exact words count: another spelling would hide a puzzle from its split.
        puzzle = PUZZLE.fullmatch(" ".join(text.split()))
        if puzzle is None:
            return "invalid_question"
        digits = tuple(int(digit) for digit in puzzle[2].split())
        if len(digits) != config.num_digits or max(digits) > config.largest_digit:
            return "invalid_question"
        num_solutions = len(solutions(digits, int(puzzle[1])))
        if num_solutions == 0 or (config.one_answer and num_solutions > 1):
            return "invalid_question"
        if self.split_rule(puzzle[0]) != "train":
            return "held_out_question"
        return _question(puzzle[0])

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Write a worked turn: a training puzzle for a proposer, else see `demonstration`."""
        if request.contract is not None and QUESTION in request.contract.sections:
            rng = random.Random(f"turn/{request.seed}")
            (question,) = self._draw_distinct(rng, "train", 1)
            return f"<{QUESTION}> {question.text} </{QUESTION}>"
        return demonstration(request, errors=errors)


@lru_cache(maxsize=65536)
def _question(text: str) -> Question:
    digits, target = read_puzzle(Question(text, text))
    right = solutions(digits, target)
    meta: dict[str, object] = {
        "kind": "text",
        "accept": list(right),
        "wrong_answers": wrong_signs(digits, target),
    }
    # `accept` holds all right answers; the first stands for them where a single one is shown.
    return Question(id=text, text=text, answer=right[0], meta=meta)


def demonstration(request: TurnRequest, *, errors: bool = True) -> str:
    """Write the turn of a demonstrator for this request.

    With errors, the first proposal of an agent is right with a chance drawn once for each question,
    evenly from 0 to 1: judges then meet right and wrong candidates in every mixture. From the
    second turn on the demonstrator checks each candidate by running totals, ranks them by the
    outcome and adopts a right candidate, or solves the puzzle itself if all are wrong. The agent's
    earlier proposal, when shown again, is checked and not ranked.

    Under a contract with an answer line it is a turn of an actor or a critic
    (`exchange_demonstration`); in a debate before a judge see `judged_demonstration`.

    Sections come in the order of the contract: with `comparison` before `solution` the answer
    follows from the checks. Without a section `evaluation` checks and votes are in `comparison`;
    with a section `analysis` they are there, and `evaluation` lists only the checks of wrong
    candidates.
    """
    digits, target = read_puzzle(request.question)
    # One skill for all agents of a question: its debates have many right answers, or few.
    skill = random.Random(f"skill/{request.question.id}").random() if errors else 1.0
    contract = request.contract
    if contract is not None and contract.kind == "answer_line":
        return exchange_demonstration(request, digits, target, skill)
    if is_before_a_judge(request):
        return judged_demonstration(request, digits, target, skill)

    rng = random.Random(f"turn/{request.seed}")
    right = solutions(digits, target)
    # Candidates are one sign between each two digits; a claim of anything else is not checked.
    candidates = {}
    for agent, claim in request.claims.items():
        claimed_signs = claim.split()
        if len(claimed_signs) == len(digits) - 1 and set(claimed_signs).issubset(SIGNS):
            candidates[agent] = " ".join(claimed_signs)
    if not candidates:
        solution = rng.choice(right)
        if rng.random() > skill:
            solution = rng.choice(wrong_signs(digits, target))
        return _turn_text(contract, {"solution": solution})

    is_right = {agent: signs in right for agent, signs in candidates.items()}
    checks = {}
    for agent, signs in candidates.items():
        checks[agent] = f"Agent {agent} {_check_totals(digits, signs, is_right[agent])}"
    ranks_own = contract is not None and contract.ranks_own
    ranked = sorted(agent for agent in candidates if ranks_own or agent != request.agent)
    votes = [vote_line(first, second, is_right) for first, second in combinations(ranked, 2)]
    adoptable = [signs for agent, signs in candidates.items() if is_right[agent]]
    texts = {
        "solution": rng.choice(adoptable or right),
        "evaluation": " ".join(checks.values()),
        "comparison": "\n".join(votes) or "N/A",
        VERDICT: "right" if all(is_right.values()) else "wrong",
    }
    sections = () if contract is None else contract.sections
    if "analysis" in sections:
        # All checks are in the analysis, so the evaluation names the faults alone.
        faults = [checks[agent] for agent in ranked if not is_right[agent]]
        texts["analysis"] = texts["evaluation"]
        texts["evaluation"] = " ".join(faults) or "N/A"
    elif contract is not None and "evaluation" not in sections:
        texts["comparison"] = f"{texts['evaluation']}\n{texts['comparison']}"
    return _turn_text(contract, texts)


def _turn_text(contract: Contract | None, texts: Mapping[str, str]) -> str:
    """Write the sections of a contract, `N/A` in those without a text."""
    sections = _SECTIONS if contract is None else contract.sections
    lines = []
    for name in sections:
        # A puzzle has nothing to write in sections such as `consensus`.
        if name in (*_SECTIONS, "analysis", VERDICT):
            lines.append(f"<{name}> {texts.get(name, 'N/A')} </{name}>")
    return "\n".join(lines)


def _check_totals(digits: Sequence[int], solution: str, is_right: bool) -> str:
    """Write the running totals of a solution, and `ok` or `no`."""
    signs = solution.split()
    steps = _write_steps(digits, signs, running_totals(digits, signs))
    return " ".join([str(digits[0]), *steps, "ok" if is_right else "no"])


def exchange_demonstration(
    request: TurnRequest, digits: tuple[int, ...], target: int, skill: float
) -> str:
    """Write the turn of an actor or a critic.

    Args:
        request: A compact prompt under a contract with an answer line.
        digits: Of the puzzle.
        target: Of the puzzle.
        skill: The chance of a right answer without help.
    """
    rng = random.Random(f"turn/{request.seed}")
    right = solutions(digits, target)

    def draw_answer() -> str:
        if rng.random() < skill:
            return rng.choice(right)
        return rng.choice(wrong_signs(digits, target))

    answer_of = {}
    for agent, claim in request.claims.items():
        match = ANSWER_LINE.search(" ".join(claim.split()))
        if match is not None:
            answer_of[agent] = match[1]
    actor_answer = answer_of.get(0)
    critic_answer = answer_of.get(1)

    if request.answers:
        # The actor takes the critic's answer; a critic that only said ok leaves the actor's own.
        return f"Answer: {request.guide or critic_answer or actor_answer or draw_answer()}"
    # An answer with too few signs or too many has no running totals to write.
    if actor_answer is None or len(actor_answer.split()) != len(digits) - 1:
        return f"no\nAnswer: {request.guide or draw_answer()}"
    is_ok = actor_answer in right
    if request.guide is not None:
        # A guided critic leads to the guide's answer, so its verdict follows the guide, not the
        # totals.
        is_ok = actor_answer == request.guide
    check = _check_totals(digits, actor_answer, is_ok)
    if is_ok:
        return check
    return f"{check}\nAnswer: {request.guide or draw_answer()}"


def is_before_a_judge(request: TurnRequest) -> bool:
    """Say whether a turn is a decision, a critique, or a first answer after running totals."""
    sections = () if request.contract is None else request.contract.sections
    if request.answers:
        return sections == ("evaluation", "solution") and not request.claims
    return "decision" in sections or sections == ("evaluation",)


def judged_demonstration(
    request: TurnRequest, digits: tuple[int, ...], target: int, skill: float
) -> str:
    """Write the turn of a proposer, a critic or a judge, each with at most a single check.

    A proposer writes running totals, and then the signs. Half of the wrong answers have a single
    false total, and reach the target after it. A critic repeats a step, half of the time a false
    step if there is any, else drawn evenly. The judge says `right` where the totals end with the
    target, unless a critic names a false step of the proposal: no other step is added up. Of
    rivals the judge takes agent 0 if the totals of agent 0 end with the target, or else agent 1.

    Args:
        request: A compact prompt; proposers have the sections `evaluation` and `solution`.
        digits: Of the puzzle.
        target: Of the puzzle.
        skill: The chance of a right proposal.
    """
    rng = random.Random(f"turn/{request.seed}")
    if request.answers:
        return _proposal(rng, digits, target, skill)

    contract = request.contract
    steps = _read_steps(request.claims.get(0, ""))
    if contract is None or "decision" not in contract.sections:
        false_steps = [step for step in steps if not _is_true(step)]
        if false_steps and rng.random() < 0.5:
            step = rng.choice(false_steps)
        else:
            step = rng.choice(steps or [""])
        return f"<evaluation> {step} </evaluation>"

    reaches_target = bool(steps) and int(steps[-1].split()[-1]) == target
    if contract.name == CHOICE:
        return f"<decision> Agent {0 if reaches_target else 1} </decision>"
    accused_step = request.claims.get(1, "").strip()
    is_caught = accused_step in steps and not _is_true(accused_step)
    verdict = "right" if reaches_target and not is_caught else "wrong"
    return f"<decision> {verdict} </decision>"


def _proposal(rng: random.Random, digits: tuple[int, ...], target: int, skill: float) -> str:
    is_right = rng.random() < skill
    solution = rng.choice(solutions(digits, target) if is_right else wrong_signs(digits, target))
    signs = solution.split()
    totals = running_totals(digits, signs)
    if not is_right and rng.random() < 0.5:
        # One false total carries the difference to the target, and every later sum is true: a
        # critic has to find that one step.
        false_index = rng.randrange(len(totals))
        difference = target - totals[-1]
        for index in range(false_index, len(totals)):
            totals[index] += difference
    work = " ".join(_write_steps(digits, signs, totals))
    return f"<evaluation> {digits[0]} {work} </evaluation>\n<solution> {solution} </solution>"


def _write_steps(digits: Sequence[int], signs: Sequence[str], totals: Sequence[int]) -> list[str]:
    operations = zip(signs, digits[1:], totals, strict=True)
    return [f"{sign} {digit} {total}" for sign, digit, total in operations]


def _read_steps(work: str) -> list[str]:
    """Parse the steps of running totals, each with the total before it."""
    words = work.split()
    # First digit, then sign, digit and total of each step.
    if len(words) <= 3 or len(words) % 3 != 1:
        return []
    signs = words[1::3]
    numbers = words[::3] + words[2::3]
    if not set(signs).issubset(SIGNS):
        return []
    if not all(NUMBER.fullmatch(number) for number in numbers):
        return []
    steps = []
    for start in range(0, len(words) - 1, 3):
        # The total of one step is the first word of the next.
        steps.append(" ".join(words[start : start + 4]))
    return steps


def _is_true(step: str) -> bool:
    before, sign, digit, total = step.split()
    return running_totals((int(before), int(digit)), (sign,)) == [int(total)]
