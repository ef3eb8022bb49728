"""Worked turns for any question with an answer, for a warm-start to imitate."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

from debate_protocol.forms.actor_critic import wrong_answer
from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import answer_line, final_box
from debate_protocol.plugins import Variants
from debate_protocol.types import VERDICT, Question, TurnRequest, parse_turn
from debate_report.rollout_files import debates_in, files_of
from debate_rewards.answer_checking import check, check_many, kind_of, same_answer
from debate_rewards.answers.reply import final_answer
from debate_rewards.math_pool import TASK
from debate_rollout.engine import Capability, Engine, EngineSettings, Script
from debate_rollout.engines import ENGINES as SAMPLERS
from debate_rollout.engines import ScriptedEngine

NUMBER = re.compile(r"-?\d{1,15}")
# Only from the beginning of a sentence: tried from each character, it takes quadratic time.
EQUATION = re.compile(r"(?<![^\n:.?!])([^\n:.?!]+=)\s*$")
NEAR_MISSES = (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)
"""Distance of a wrong number from the right one: slips in one digit, or in a carry."""
BARE_ANSWER = "The answer is \\boxed"
MAX_REPEATED = 60
"""Characters of the longest answer that a check repeats."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A sentence and a verdict about an agent's answer.

    `is_worked` says that the sentence comes with the question.
    """

    text: str
    is_right: bool
    is_worked: bool


def worked_turn(request: TurnRequest, *, errors: bool = True) -> str:
    r"""Write the turn of a demonstrator for this request, by the question's answer.

    With errors, the first answer of an agent is right with a chance drawn once for each question,
    evenly from 0 to 1: judges then meet right and wrong answers in every mixture. Later turns
    check each shown answer by its text in `meta["worked_checks"]`, else against the right one;
    compare the others' answers pair by pair (`=` for two right or two wrong answers), and answer
    rightly. A guided reply gives the guide's answer; a critic confirms a right answer, or names the
    right one, which a check by text leaves out; a judge decides for the right agent.

    The reasoning is `meta["solution"]`, where the question has one and the answer is right; an
    equation at the end of the question, as in `Find 3 + 4 =`, is repeated before the answer.
    """
    contract = request.contract
    sections = () if contract is None else contract.sections
    if "decision" in sections and contract is not None and contract.name != CHOICE:
        # This judge decides on agent 0 alone: the other claims are critiques of it.
        proposals = {agent: claim for agent, claim in request.claims.items() if agent == 0}
        request = replace(request, claims=proposals)
    answer = _choose_answer(request, errors)
    checks = _check_claims(request, answer)
    if not request.answers and "comparison" not in sections:
        return _feedback(request, answer, checks)

    solution = _solution(request, answer)
    evaluation = " ".join(check.text for check in checks.values()) or "N/A"
    if contract is None or contract.kind == "answer_line":
        return solution
    # A reply without sections can only put its checks before the answer.
    if contract.kind == "boxed":
        return f"{evaluation} {solution}" if checks else solution

    is_right = {agent: check.is_right for agent, check in checks.items()}
    ranked = sorted(agent for agent in checks if contract.ranks_own or agent != request.agent)
    right_agents = [str(agent) for agent in ranked if is_right[agent]]
    wrong_agents = [str(agent) for agent in ranked if not is_right[agent]]
    if len(ranked) > 1:
        # A small model compares what is listed.
        evaluation += f" Right: {', '.join(right_agents) or 'nobody'}."
        evaluation += f" Wrong: {', '.join(wrong_agents) or 'nobody'}."
    # Ties come last: the two lists before the votes then give all votes in one order.
    decided_votes = []
    tied_votes = []
    for first, second in combinations(ranked, 2):
        vote = vote_line(first, second, is_right)
        if is_right[first] == is_right[second]:
            tied_votes.append(vote)
        else:
            decided_votes.append(vote)
    votes = "\n".join(decided_votes + tied_votes) or "N/A"
    # Without a section for them, the checks go before the votes that follow from them.
    if "evaluation" not in sections and checks and request.answers:
        votes = f"{evaluation}\n{votes}"

    texts = {
        "analysis": evaluation,
        "evaluation": evaluation,
        "comparison": votes,
        "consensus": "NO",
        "consensus_reason": "Not all answers are right.",
    }
    if "analysis" in sections:
        # All checks are in the analysis, so the evaluation names the faults alone.
        fault_texts = [checks[agent].text for agent in ranked if not is_right[agent]]
        texts["evaluation"] = " ".join(fault_texts) or "N/A"
    if ranked and all(is_right.values()):
        texts["consensus"] = "YES"
        texts["consensus_reason"] = "All answers are right."
    texts[contract.answer_section or ""] = solution
    return "\n".join(f"<{name}>{texts.get(name, 'N/A')}</{name}>" for name in sections)


def vote_line(first: int, second: int, is_right: Mapping[int, bool]) -> str:
    """Write the vote on two agents: right before wrong, else a tie."""
    if is_right[first] == is_right[second]:
        return f"Agent {first} = Agent {second}"
    if is_right[first]:
        return f"Agent {first} > Agent {second}"
    return f"Agent {second} > Agent {first}"


def is_bare(text: str) -> bool:
    """Say whether a worked first turn gives an answer without any reasoning."""
    return re.match(rf"(<\w+>)?{re.escape(BARE_ANSWER)}", text) is not None


def _choose_answer(request: TurnRequest, errors: bool) -> str:
    """Choose the turn's answer: the guide's, the right answer, or a slip."""
    if request.guide is not None:
        return request.guide
    question = request.question
    sections = () if request.contract is None else request.contract.sections
    judges_by = {"comparison", "decision", VERDICT}
    is_judge = not request.answers and not judges_by.isdisjoint(sections)
    sees_answers = request.answers and bool(request.claims)
    # First answers and critics may err, for others to find; judges and later answers do not.
    rng = random.Random(f"turn/{request.seed}")
    skill = random.Random(f"skill/{question.id}").random()
    answer = str(question.answer)
    if errors and not is_judge and not sees_answers and rng.random() > skill:
        return _draw_wrong_answer(question, rng) or answer
    return answer


def _draw_wrong_answer(question: Question, rng: random.Random) -> str | None:
    """Draw a wrong answer by the checker's verdict, `None` where there is no such answer."""
    right = str(question.answer)
    if not NUMBER.fullmatch(right):
        return wrong_answer(question, (), partial(same_answer, question), rng)
    # Half are slips that only a careful check finds, half are plainly other numbers.
    distance = rng.choice((-1, 1)) * rng.randint(1, 99)
    if rng.random() < 0.5:
        distance = rng.choice(NEAR_MISSES)
    wrong = str(int(right) + distance)
    return wrong if check(question, wrong).verdict == "wrong" else None


def _check_claims(request: TurnRequest, answer: str) -> dict[int, _Check]:
    """Check each shown answer against `answer`, by agent."""
    question = request.question
    if answer != question.answer:
        # A guided turn, or a mistaken critic: other ways to recognize the right answer go.
        meta = dict(question.meta)
        for key in ("accept", "worked_checks", TASK):
            meta.pop(key, None)
        question = replace(question, answer=answer, meta=meta)
    # The two are side by side: a small model learns to compare what is near.
    truth = f" it is {answer}," if len(answer) <= MAX_REPEATED else ""
    verdicts = check_many([(question, claim) for claim in request.claims.values()])
    worked_checks = question.meta.get("worked_checks", {})
    checks = {}
    for (agent, claim), verdict in zip(request.claims.items(), verdicts, strict=True):
        claimed = final_answer(claim, kind_of(question))
        repeated = ""
        if claimed is not None and len(claimed.text) <= MAX_REPEATED:
            repeated = f" {claimed.text},"
        is_right = verdict.verdict == "right"
        worked_check = None if claimed is None else worked_checks.get(claimed.text)
        reason = f"{repeated}{truth}" if worked_check is None else f" {worked_check},"
        text = f"Agent {agent}:{reason} {'right' if is_right else 'wrong'}."
        checks[agent] = _Check(text, is_right, is_worked=worked_check is not None)
    return checks


def _feedback(request: TurnRequest, answer: str, checks: Mapping[int, _Check]) -> str:
    """Write the turn of a critic, or of a judge without comparisons."""
    contract = request.contract
    all_right = bool(checks) and all(check.is_right for check in checks.values())
    feedback = " ".join(check.text for check in checks.values())
    is_worked = bool(checks) and all(check.is_worked for check in checks.values())
    if not all_right and not is_worked:
        # A critic that rejects an answer names the right one, which a worked check does not need.
        feedback = f"{feedback}\n{_mark(request, answer)}".strip()
    if contract is None or not contract.sections:
        return feedback

    first_is_right = 0 in checks and checks[0].is_right
    second_is_right = 1 in checks and checks[1].is_right
    decision = "right" if first_is_right else "wrong"
    if contract.name == CHOICE:
        # Agent 0 wins where both rivals are right, or both wrong.
        decision = "Agent 1" if second_is_right and not first_is_right else "Agent 0"
    texts = {
        "evaluation": feedback,
        "decision": decision,
        VERDICT: "right" if all_right else "wrong",
    }
    sections = contract.sections
    return "\n".join(f"<{name}>{texts.get(name, 'N/A')}</{name}>" for name in sections)


def _solution(request: TurnRequest, answer: str) -> str:
    """Write the known reasoning for an answer, with the answer at the end."""
    question = request.question
    marked_answer = _mark(request, answer)
    is_line = request.contract is not None and request.contract.kind == "answer_line"
    reasoning = str(question.meta.get("solution", ""))
    if reasoning and answer == question.answer:
        answer_range = answer_line(reasoning) if is_line else final_box(reasoning)
        if answer_range is not None and check(question, reasoning).verdict == "right":
            return reasoning
        return f"{reasoning}\n{marked_answer}"

    equation = EQUATION.search(question.text)
    if equation is None or request.contract is None:
        return marked_answer
    left_side = equation[1].strip()
    if is_line:
        return f"{left_side} {answer}\n{marked_answer}"
    return f"{left_side} \\boxed{{{answer}}}"


def _mark(request: TurnRequest, answer: str) -> str:
    if request.contract is not None and request.contract.kind == "answer_line":
        return f"Answer: {answer}"
    return f"{BARE_ANSWER}{{{answer}}}."


class Demonstrations(EngineSettings):
    """Replies written by the data source instead of sampled, for a warm-start to imitate."""

    is_sampled: ClassVar[bool] = False

    type: Literal["demonstrations"] = "demonstrations"
    errors: bool = True
    """Whether some first proposals are wrong, so that judges have something to find."""
    accepted: str | None = None
    """Debates of the model itself, such as a folder of `debate-rollout`: its right first answers
    to a question, drawn, are the solutions that are demonstrated (rejection sampling)."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Demonstrations have tokens, without log-probabilities of a sampler."""
        return frozenset(("tokens",))

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Build the function to write each agent's turn."""
        write_turn = partial(demonstrate, errors=self.errors)
        if self.accepted is None:
            return write_turn
        accepted = read_accepted(self.accepted)

        def write_turn_from_accepted(request: TurnRequest) -> str:
            question = request.question
            if question.text in accepted:
                rng = random.Random(f"accepted/{request.seed}")
                meta = {**question.meta, "solution": rng.choice(accepted[question.text])}
                request = replace(request, question=replace(question, meta=meta))
            return write_turn(request)

        return write_turn_from_accepted

    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Refuse to open: the turns come from `script`.

        Raises:
            EngineConfigError: Always.
        """
        return ScriptedEngine().open(model, tokenizer, template_kwargs)


@lru_cache(maxsize=4)
def read_accepted(path: str) -> Mapping[str, list[str]]:
    """Read the right first answers of debates, by the text of their questions.

    Raises:
        UsageError: There are no debates.
    """
    key = "rollout.engine.accepted"
    first_answers = []
    for file in files_of(Path(path), key):
        for debate in debates_in(file, key, answer=None):
            # A later answer may repeat a peer's: only first ones are the model's own solutions.
            first_turns = [turn for turn in debate.turns if turn.round == 0]
            for turn in first_turns:
                parsed = parse_turn(debate, turn)
                answer = parsed.spoken
                if parsed.sections:
                    answer = parsed.answer or ""
                first_answers.append((debate.question, answer))
    # In one call, which divides the checks among processes.
    results = check_many(first_answers)
    accepted: dict[str, list[str]] = {}
    for (question, answer), result in zip(first_answers, results, strict=True):
        if result.verdict == "right":
            accepted.setdefault(question.text, []).append(answer)
    return accepted


ENGINES: Variants[EngineSettings] = Variants(
    SAMPLERS.group, EngineSettings, *SAMPLERS.models, Demonstrations
)
"""All engines, and demonstrations in the place of one."""
