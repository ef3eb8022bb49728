"""Worked turns for any question with an answer: what a warm-start imitates."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

from debate_protocol.forms.actor_critic import wrong_answer
from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import Parsed, answer_line, final_box
from debate_protocol.plugins import Variants
from debate_protocol.types import Question, TurnRequest, parse_turn
from debate_report.rollout_files import debates_in, files_of
from debate_rewards.answer_checking import check, check_many, kind_of, same_answer
from debate_rewards.answers.reply import final_answer
from debate_rewards.math_pool import TASK
from debate_rollout.engine import Capability, Engine, EngineSettings, Script
from debate_rollout.engines import ENGINES as SAMPLERS
from debate_rollout.engines import ScriptedEngine

_NUMBER = re.compile(r"-?\d{1,15}")
# Only from the beginning of a sentence: tried from each character, it takes quadratic time.
_EQUATION = re.compile(r"(?<![^\n:.?!])([^\n:.?!]+=)\s*$")
_NEAR = (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)
"""How far a wrong number is from the right one: slips in one digit, or in a carry."""
_ALONE = "The answer is \\boxed"
_LONGEST = 60
"""Characters of an answer that a check repeats."""


def worked_turn(request: TurnRequest, *, errors: bool = True) -> str:
    r"""Return the turn that a demonstrator writes for this ask, by the question's answer.

    With errors, the first answer of an agent is right with a chance drawn once for each question,
    evenly from 0 to 1, so that judges meet right and wrong answers in every mixture. Who is shown
    answers checks each against the right one, compares those of others pair by pair (of a pair
    alike in that, `=`), and answers rightly. A reply that is steered to an answer gives it; a
    critic confirms what it is shown, or names the answer that it holds to be right; a judge decides
    for who is right.

    The reasoning is `meta["solution"]`, where the question has one and the answer is right; an
    equation that the question ends with, as in `Find 3 + 4 =`, is repeated before its answer.
    """
    question, rng = request.question, random.Random(f"turn/{request.seed}")
    skill = random.Random(f"skill/{question.id}").random()
    answer = str(question.answer)
    sections = () if request.contract is None else request.contract.sections
    judges = not request.answers and {"comparison", "decision"} & {*sections}
    if "decision" in sections and request.contract is not None and request.contract.name != CHOICE:
        request = replace(
            request, claims={agent: said for agent, said in request.claims.items() if agent == 0}
        )
    slips = errors and rng.random() > skill and not judges
    if request.guide is not None:
        answer = request.guide
    elif slips and (not request.claims or not request.answers):
        answer = _wrong(question, rng) or answer
    checks = _checked(request, answer)
    if not request.answers and "comparison" not in sections:
        found = " ".join(checks.values())
        agrees = bool(checks) and "wrong." not in found
        feedback = found if agrees else f"{found}\n{_marked(request, answer)}".strip()
        parts = {"evaluation": feedback, "decision": _decision(request, checks)}
        return "\n".join(f"<{one}>{parts.get(one, 'N/A')}</{one}>" for one in sections) or feedback
    solution = _solution(request, answer)
    evaluation = " ".join(checks.values()) or "N/A"
    if request.contract is None or request.contract.kind == "answer_line":
        return solution
    if request.contract.kind == "boxed":
        return f"{evaluation} {solution}" if checks else solution
    right = {agent: text.endswith("right.") for agent, text in checks.items()}
    others = sorted(right.keys() - ({request.agent} if not request.contract.ranks_own else set()))
    if len(others) > 1:
        evaluation += f" {_sorted_out(others, right)}"
    # Unequal pairs come first: two lists, written before, say all of it in one order.
    pairs = sorted(combinations(others, 2), key=lambda pair: right[pair[0]] == right[pair[1]])
    votes = "\n".join(_vote(a, b, right) for a, b in pairs) or "N/A"
    if "evaluation" not in sections and checks and request.answers:
        votes = f"{evaluation}\n{votes}"
    agreed = bool(others) and all(right.values())
    faults = " ".join(checks[agent] for agent in others if not right[agent]) or "N/A"
    critiques = faults if "analysis" in sections else evaluation
    said = {"analysis": evaluation, "evaluation": critiques, "comparison": votes}
    said["consensus"] = "YES" if agreed else "NO"
    said["consensus_reason"] = "All answers are right." if agreed else "Not all answers are right."
    said[request.contract.answer_section or ""] = solution
    return "\n".join(f"<{one}>{said.get(one, 'N/A')}</{one}>" for one in sections)


def _checked(request: TurnRequest, answer: str) -> dict[int, str]:
    """Return what is said of each answer that is shown: what it is, and whether it is `answer`."""
    question = request.question
    if answer != question.answer:  # Of a guided turn, or of a critic who is wrong.
        meta = {name: one for name, one in question.meta.items() if name not in ("accept", TASK)}
        question = replace(question, answer=answer, meta=meta)
    asked = [(question, claim) for claim in request.claims.values()]
    found: dict[int, str] = {}
    # The two stand side by side: a small model learns to compare what is near.
    truth = f" it is {answer}," if len(answer) <= _LONGEST else ""
    for (agent, claim), one in zip(request.claims.items(), check_many(asked), strict=True):
        given = final_answer(claim, kind_of(question))
        said = "" if given is None or len(given.text) > _LONGEST else f" {given.text},"
        verdict = "right" if one.verdict == "right" else "wrong"
        found[agent] = f"Agent {agent}:{said}{truth} {verdict}."
    return found


def _decision(request: TurnRequest, checks: Mapping[int, str]) -> str:
    """Return whom a judge decides for: agent 0 where both rivals are right, or both wrong."""
    right = {agent: text.endswith("right.") for agent, text in checks.items()}
    if request.contract is not None and request.contract.name == CHOICE:
        return f"Agent {int(right.get(1, False) and not right.get(0, False))}"
    return "right" if right.get(0, False) else "wrong"


def _solution(request: TurnRequest, answer: str) -> str:
    """Return the reasoning that there is for an answer, which it ends with."""
    reasoning = str(request.question.meta.get("solution", ""))
    if answer != request.question.answer or not reasoning:
        equation = _EQUATION.search(request.question.text)
        if equation is None or request.contract is None:
            return _marked(request, answer)
        if request.contract.kind == "answer_line":
            return f"{equation[1].strip()} {answer}\n{_marked(request, answer)}"
        return f"{equation[1].strip()} \\boxed{{{answer}}}"
    is_line = request.contract is not None and request.contract.kind == "answer_line"
    place = answer_line(reasoning) if is_line else final_box(reasoning)
    if place is not None and check(request.question, reasoning).verdict == "right":
        return reasoning
    return f"{reasoning}\n{_marked(request, answer)}"


def _marked(request: TurnRequest, answer: str) -> str:
    is_line = request.contract is not None and request.contract.kind == "answer_line"
    return f"Answer: {answer}" if is_line else f"{_ALONE}{{{answer}}}."


def is_bare(text: str) -> bool:
    """Return whether a worked first turn gives an answer without any reasoning."""
    return re.match(rf"(<\w+>)?{re.escape(_ALONE)}", text) is not None


def _sorted_out(agents: Sequence[int], right: Mapping[int, bool]) -> str:
    """Return who is right and who is wrong: a small model compares what is listed."""
    lists = ([one for one in agents if right[one] is side] for side in (True, False))
    said = (", ".join(map(str, one)) or "nobody" for one in lists)
    return "Right: {}. Wrong: {}.".format(*said)


def _vote(a: int, b: int, right: Mapping[int, bool]) -> str:
    if right[a] == right[b]:
        return f"Agent {a} = Agent {b}"
    return f"Agent {a} > Agent {b}" if right[a] else f"Agent {b} > Agent {a}"


def _wrong(question: Question, rng: random.Random) -> str | None:
    """Return an answer that the checker refuses, None where none is known."""
    right = str(question.answer)
    if _NUMBER.fullmatch(right):
        # Half are slips that only a careful check finds, half are plainly other numbers.
        far = rng.choice((-1, 1)) * rng.randint(1, 99)
        near = str(int(right) + (rng.choice(_NEAR) if rng.random() < 0.5 else far))
        return near if check(question, near).verdict == "wrong" else None
    return wrong_answer(question, (), partial(same_answer, question), rng)


class Demonstrations(EngineSettings):
    """Replies written by the data source instead of sampled: what a warm-start imitates."""

    is_sampled: ClassVar[bool] = False

    type: Literal["demonstrations"] = "demonstrations"
    errors: bool = True
    """Whether some first proposals are wrong, so that judges have something to find."""
    accepted: str | None = None
    """Debates of the model itself, such as a folder of `debate-rollout`: its right first answers
    to a question, drawn, are the solutions that are demonstrated (rejection sampling)."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Demonstrations have tokens; nobody sampled them."""
        return frozenset(("tokens",))

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Return what agents say."""
        written = partial(demonstrate, errors=self.errors)
        if self.accepted is None:
            return written
        solutions = _accepted(self.accepted)

        def say(request: TurnRequest) -> str:
            if own := solutions.get(request.question.text):
                solution = random.Random(f"accepted/{request.seed}").choice(own)
                meta = {**request.question.meta, "solution": solution}
                request = replace(request, question=replace(request.question, meta=meta))
            return written(request)

        return say

    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Return the engine that plays a script.

        Raises:
            EngineConfigError: Always: what it says is asked of `script`.
        """
        return ScriptedEngine().open(model, tokenizer, template_kwargs)


@lru_cache(maxsize=4)
def _accepted(path: str) -> Mapping[str, list[str]]:
    """Return the right first answers of debates, by the text of their questions.

    Raises:
        UsageError: There are no debates.
    """
    key = "rollout.engine.accepted"
    debates = [
        one for file in files_of(Path(path), key) for one in debates_in(file, key, answer=None)
    ]
    first = [(one, turn) for one in debates for turn in one.turns if turn.round == 0]
    said = [(debate.question, _reasoning(parse_turn(debate, turn))) for debate, turn in first]
    found: dict[str, list[str]] = {}
    for (question, text), one in zip(said, check_many(said), strict=True):
        if one.verdict == "right":
            found.setdefault(question.text, []).append(text)
    return found


def _reasoning(parsed: Parsed) -> str:
    return (parsed.answer or "") if parsed.sections else parsed.spoken


ENGINES: Variants[EngineSettings] = Variants(
    SAMPLERS.group, EngineSettings, *SAMPLERS.models, Demonstrations
)
"""All engines, and demonstrations in the place of one."""
