"""Answers that several judges check, each of whom reads one answer alone, or two of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from debate_protocol.forms.proposed import PROPOSAL, PROPOSER, proposal_request
from debate_protocol.forms.rounds import (
    equal_requests,
    first_view,
    new_turn_request,
    parsed_of,
    record_replies,
    shown_fields,
)
from debate_protocol.forms.settings import MOST, DebateStart, SampledSettings
from debate_protocol.parsing import Contract
from debate_protocol.prompts import SeenTurn, View, opening
from debate_protocol.types import (
    DEBATER,
    JUDGE,
    QUESTION,
    VERDICT,
    AgentRole,
    DebateRun,
    Protocol,
    Turn,
    TurnRequest,
)

_INSTRUCTIONS = {
    "evaluation": "what holds of what was said, and what does not.",
    VERDICT: "only right or wrong: whether the answer is.",
}


class Checked(SampledSettings):
    """Agents answer at once, then judges who answer nothing check the answers.

    Judges are dealt evenly over the answers, or over the pairs of answers, so that each is checked
    several times by judges who know nothing of each other. Agents 0 to `debaters` − 1 speak in
    round 0, the judges in round 1. All answers are samples of one prompt, and so are all checks of
    one answer or pair; every second check of a pair reads it in the opposite order.

    A judge of a pair compares, as judges of other debates do. A judge of one answer says right or
    wrong; rewards compare the verdicts on two answers (`debate_rewards.votes.check_votes`). Failed
    answers are not checked. Without two answers nobody judges.

    Under `type: proposed` an agent writes the question in round 0, the last agent; answers and
    checks come a round later. The data's checker reads the question (`DebateStart.check_proposal`).
    A refused question ends the debate, and the proposer's turn fails if it is invalid. An accepted
    question becomes the question of the transcript. Without a checker, as in evaluations, the given
    question is debated and no proposer speaks.

    Source: a proposer and solvers of one policy (Absolute Zero: Zhao et al., arXiv 2505.03335;
    R-Zero: Huang et al., arXiv 2508.05004); there no judges check.
    """

    type: Literal["checked", "proposed"] = "checked"
    # What no recipe could choose otherwise is no key: answers, then checks, without a gate.
    max_rounds: ClassVar = property(lambda form: form.answer_round + 2)  # type: ignore[misc]
    gate_after: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]
    personas: ClassVar[Literal["none"]] = "none"  # type: ignore[misc]
    max_chars_per_field: ClassVar[None] = None  # type: ignore[misc]
    debaters: int = Field(default=4, ge=2, le=MOST)
    """Agents who answer."""
    judges: int = Field(default=12, ge=1, le=MOST)
    """Judges of a debate, each sampled for itself; often more than debaters."""
    judges_see: Literal["answer", "pair"] = "pair"
    """What a judge reads: one `answer` alone, or a `pair` of them."""
    distinct: bool = False
    """Check one turn of each different answer, and that more often: for `pool: answer`."""

    example: bool = True
    """A proposer reads a question of the data as an example; else all read the same prompt."""

    agent_keys: ClassVar[tuple[str, ...]] = ("debaters", "judges")

    @property
    def proposes(self) -> bool:
        """Whether an agent writes the question."""
        return self.type == "proposed"

    @property
    def answer_round(self) -> int:
        """The round of the answers; judges speak in the next one."""
        return int(self.proposes)

    @property
    def num_agents(self) -> int:
        """Count the agents, judges and proposer included."""
        return self.debaters + self.judges + int(self.proposes)

    def turn_count(self) -> int:
        """Count the turns that are sampled."""
        return self.num_agents

    def own_roles(self) -> tuple[AgentRole, ...]:
        """List the roles of debaters, judges and proposer."""
        judge_round = self.answer_round + 1
        roles = [
            AgentRole(DEBATER, self.debaters, rounds=(self.answer_round,), sees={}),
            AgentRole(JUDGE, self.judges, answers=False, rounds=(judge_round,), sees="drawn"),
        ]
        if self.proposes:
            # The last number: prompts of debaters and judges are those of `checked`.
            roles.append(AgentRole(PROPOSER, answers=False, rounds=(0,), sees={}))
        return tuple(roles)

    def contracts(self) -> tuple[str | Contract, ...]:
        """List the contracts of questions, of answers and of checks."""
        verdict_section = "comparison" if self.judges_see == "pair" else VERDICT
        sections = ("evaluation", verdict_section)
        instructions = {name: _INSTRUCTIONS[name] for name in sections if name in _INSTRUCTIONS}
        check = Contract("check", sections, instructions=instructions, answers=False)
        proposal = (PROPOSAL,) if self.proposes else ()
        return (*proposal, self.recorded_contract(), check)

    def protocol(self) -> Protocol:
        """Build the rules for transcripts."""
        changed_settings = {"distinct": True} if self.distinct else {}
        return self.rules({"judges_see": self.judges_see}, changed_settings)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""
        if not self.proposes or begin.check_proposal is None:
            return (yield from self._answered_and_checked(begin, []))
        rules = self.protocol()
        agent = self.num_agents - 1
        requests = [proposal_request(self, begin, agent, has_example=self.example)]
        (turn,) = record_replies(self, rules, requests, (yield requests))
        section = parsed_of(turn).sections.get(QUESTION)
        checked = begin.check_proposal("" if section is None else section.text)
        if isinstance(checked, str):
            # Held out is no fault: a penalty would teach the proposer which questions are.
            if checked == "invalid_question":
                turn = replace(turn, failure=turn.failure or checked)
            return begin.transcript(rules, [turn], checked)
        begin = replace(begin, question=checked.question, same_answer=checked.same_answer)
        return (yield from self._answered_and_checked(begin, [turn]))

    def _answered_and_checked(self, begin: DebateStart, earlier_turns: list[Turn]) -> DebateRun:
        """Play the answers to the question and their checks, after earlier turns."""
        rules = self.protocol()
        view = replace(first_view(begin, self.contract_rules()), round=self.answer_round)
        requests = equal_requests(self, begin, view, self.debaters)
        answers = record_replies(self, rules, requests, (yield requests))
        checked_turns = self._checked_turns(begin, answers)
        if len(checked_turns) < 2:
            return begin.transcript(rules, earlier_turns + answers, "no_pair")
        requests = self._checks(begin, view, checked_turns)
        checks = record_replies(self, rules, requests, (yield requests))
        return begin.transcript(rules, earlier_turns + answers + checks, "max_rounds")

    def _checked_turns(self, begin: DebateStart, answers: Sequence[Turn]) -> list[Turn]:
        """Select the valid answers, under `distinct` the first turn of each."""
        checked_turns: list[Turn] = []
        for turn in answers:
            if turn.failure is not None:
                continue
            answer = parsed_of(turn).answer or ""
            earlier_answers = [parsed_of(earlier).answer or "" for earlier in checked_turns]
            is_repeated = any(begin.same_answer(earlier, answer) for earlier in earlier_answers)
            if not (self.distinct and is_repeated):
                checked_turns.append(turn)
        return checked_turns

    def _checks(
        self, begin: DebateStart, view: View, checked_turns: Sequence[Turn]
    ) -> list[TurnRequest]:
        """Deal the judges over the answers or pairs, and build their requests."""
        targets: list[tuple[Turn, ...]] = [(turn,) for turn in checked_turns]
        if self.judges_see == "pair":
            targets = list(combinations(checked_turns, 2))
        judge_round = self.answer_round + 1
        contract = self.protocol().contract_of(judge_round)
        # Answers and checks may both have an evaluation.
        sections = dict.fromkeys((*self.contract_rules().sections, *contract.sections))
        tags = Contract("tags", tuple(sections))
        requests = []
        for judge in range(self.judges):
            num_earlier_checks, target_number = divmod(judge, len(targets))
            target = targets[target_number]
            # The order on the page must not decide a pair.
            if num_earlier_checks % 2:
                target = target[::-1]
            seen = [SeenTurn(*turn.key, shown_fields(self, turn, tags)) for turn in target]
            judge_view = replace(
                view,
                contract=contract,
                # Prompts number all judges alike, so that checks of one target share a prompt.
                agent=self.debaters,
                round=judge_round,
                turns=tuple(seen),
                peers=tuple(sorted(turn.agent for turn in target)),
                answers=False,
            )
            request = new_turn_request(
                self,
                begin.seed,
                replace(judge_view, agent=self.debaters + judge),
                opening(self.style, judge_view),
                tuple(turn.key for turn in target),
            )
            requests.append(request)
        return requests

    @model_validator(mode="after")
    def _judges_fit(self) -> Self:
        if "comparison" in self.contract_rules().sections:
            raise ValueError(
                f"contract: found {str(self.contract_rules())!r}, in which agents compare each "
                "other; expected boxed, answer_line or one of solutions alone, as judges compare"
            )
        if not self.proposes and not self.example:
            raise ValueError("example: found false, but nobody proposes; expected type: proposed")
        return self
