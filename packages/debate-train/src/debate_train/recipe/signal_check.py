"""Whether anything can be learned: a scripted debate through form, reward and advantages."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import Contract, get_contract
from debate_protocol.types import Question, Reply, Transcript, TurnKey, TurnRequest
from debate_rewards.reward import (
    ReadDebate,
    RewardConfig,
    RewardContext,
    read_debate,
    score_debates,
)
from debate_rollout.rendering import TokenText
from debate_train.batches.rows import stream_credit, turn_tokens
from debate_train.playing import named_debates
from debate_train.recipe import Recipe
from debate_train.recipe.context import hold, many

Script = Callable[[TurnRequest], Reply]
Taught = tuple[str, str]
"""A stream, and the component of a mixed reward that gives it values."""

_QUESTIONS, _COPIES, _AGENTS, _ROUNDS, _ROLLOUTS = 2, 4, 8, 4, 2
MOST_TURNS = 512
"""Most turns of a step that is played; larger debates are not."""
_RIGHT, _WRONG = "7", ("8", "9")
STEPS = 6
"""Scripted steps after which a value that never came is taken never to come."""


def small_recipe(phase: Recipe) -> Recipe | None:
    """Return the phase with debates small enough to play, None where that is another debate."""
    copies = {
        name: min(getattr(phase.rollout, name), _COPIES)
        for name in ("debates_per_question", "direct_per_question")
    }
    try:
        debate = phase.debate.at_most(_AGENTS, _ROUNDS, _ROLLOUTS)
    except ValueError:  # A topology that does not fit fewer agents.
        return None
    if debate.turn_count() * copies["debates_per_question"] * _questions(phase) > MOST_TURNS:
        return None
    rollout = phase.rollout.model_copy(update={**copies, "other_forms": ()})
    return phase.model_copy(update={"debate": debate, "rollout": rollout})


def scripted_step(recipe: Recipe, number: int, *, answers: bool) -> list[Transcript]:
    """Play the debates of one small step.

    Agents are right and wrong in a mixture, criticise everybody they were shown, and compare every
    pair that they may, more often right than wrong. No two steps are alike.

    Args:
        recipe: From `small_recipe`.
        number: Of the step.
        answers: Whether the questions have answers.
    """
    num_questions = min(recipe.data.batch_size, _questions(recipe))
    questions = scripted_questions(num_questions, answers=answers)
    return [
        hold(run, ScriptedAgents(recipe.rollout.max_tokens, name))
        for name, run in named_debates(recipe, questions, f"check/{number}")
    ]


def scripted_questions(count: int, *, answers: bool) -> list[Question]:
    """Make up the questions of scripted debates."""
    answer = _RIGHT if answers else None
    return [Question(f"q{i}", f"question {i}", answer, {"kind": "number"}) for i in range(count)]


def _questions(phase: Recipe) -> int:
    return max(_QUESTIONS, *(part.least_questions for part in phase.reward.parts().values()))


class ScriptedAgents:
    """Says all that a contract has room for, differently in every turn."""

    def __init__(self, max_tokens: int, name: str) -> None:
        self._right: dict[TurnKey, bool] = {}
        self._most, self._name = max_tokens, name

    def __call__(self, request: TurnRequest) -> Reply:
        """Write a turn's reply, of a length drawn for it."""
        chance = random.Random(f"{self._name}/{request.seed}/{request.agent}/{request.round}")
        right = chance.random() < 0.5
        self._right[TurnKey(request.agent, request.round)] = right
        answer = _RIGHT if right else chance.choice(_WRONG)
        contract = request.contract or get_contract("boxed")
        text = contract.reply(answer, self._sections(request, contract, chance))
        tokens = self._most if chance.random() < 0.3 else chance.randint(1, self._most)
        return Reply(text, token_ids=(0,) * tokens, logps=(0.0,) * tokens)

    def _sections(
        self, request: TurnRequest, contract: Contract, chance: random.Random
    ) -> dict[str, str]:
        own = {TurnKey(request.agent, 0)} if contract.ranks_own else set[TurnKey]()
        latest = {
            key.agent: self._right.get(key, False) for key in sorted(own.union(request.shown))
        }
        decisions = ("Agent 0", "Agent 1") if contract.name == CHOICE else ("right", "wrong")
        return {
            "decision": chance.choice(decisions),
            "evaluation": " ".join(
                f"Agent {agent} is {'right' if ok else 'wrong'}." for agent, ok in latest.items()
            ),
            "comparison": "\n".join(
                f"Agent {a} {_verdict(latest[a], latest[b], chance)} Agent {b}"
                for a, b in combinations(sorted(latest), 2)
            ),
        }


def _verdict(left: bool, right: bool, chance: random.Random) -> str:
    if left == right or chance.random() < 0.2:
        return chance.choice(">=<")
    return ">" if left else "<"


def _taught(recipe: Recipe, transcripts: Sequence[Transcript]) -> Iterator[Taught]:
    """Yield which streams of which components give any character a value that is not 0."""
    advantages = recipe.advantage(transcripts, score_debates(recipe.reward, transcripts))
    for transcript, by_turn in zip(transcripts, advantages, strict=True):
        for turn in transcript.turns:
            own = by_turn.get(turn.key, [])
            for component in dict.fromkeys(a.component for a in own if a.value != 0):
                text = TokenText(turn.text, tuple(range(len(turn.text))))
                parts = [a for a in own if a.component == component]
                tokens = turn_tokens(transcript, turn, text)
                values, _ = stream_credit(tokens, parts, recipe.advantage.streams)
                for name, row in zip(recipe.advantage.streams, values, strict=True):
                    if row.any():
                        yield name, component


@dataclass(frozen=True, slots=True)
class SignalCheck:
    """What scripted debates of a phase taught.

    Attributes:
        given: The streams that the reward has values for and that are trained, by component.
        taught: Those of them in which some token had an advantage; no turn fails.
        asked: Whether anybody was shown two others, and so is asked to compare them.
        compares: Whether the contract has room for comparisons.
        answers: Whether the questions have answers.
    """

    given: tuple[Taught, ...]
    taught: frozenset[Taught]
    asked: bool
    compares: bool
    answers: bool

    @classmethod
    def of(cls, phase: Recipe, *, answers: bool = True) -> "SignalCheck | None":
        """Play scripted debates of a phase.

        Args:
            phase: The phase.
            answers: Whether its questions have answers.

        Returns:
            None where that says nothing: nothing is trained or nothing is sampled, the reward is
            of another package, or the debate is too large to play.
        """
        small = small_recipe(phase)
        parts = phase.reward.parts().values()
        if small is None or phase.loss.supervised or not all(part.can_be_tried for part in parts):
            return None
        given = _given(phase)
        found, debates = set[Taught](), list[ReadDebate]()
        with quiet_rewards():
            for number in range(STEPS):
                if found.issuperset(given) and debates:
                    break
                step = scripted_step(small, number, answers=answers)
                found.update(_taught(small, step))
                debates += map(read_debate, step)
        return cls(
            given=given,
            taught=frozenset(found),
            asked=any(one.expected_pairs(turn) for one in debates for turn in one.judges.values()),
            compares=any(one.compares for one in debates),
            answers=answers,
        )

    @property
    def teaches_nothing(self) -> bool:
        """Whether no value reached any token."""
        return not self.taught.intersection(self.given)

    def warnings(self, phase: Recipe) -> Iterator[str]:
        """Yield one sentence for each value of the reward that never reaches a token, and why."""
        parts, streams = phase.reward.parts(), phase.advantage.streams
        if not self.given and any(stream in streams for stream in phase.reward.streams):
            text = "nothing is learned: every stream that the reward has values for has weight 0"
            yield f"{text}; expected a weight in advantage.streams or reward.components"
        reasons = {one: self._reason(phase, *one) for one in self.given if one not in self.taught}
        if self.teaches_nothing:
            yield from (f"nothing is learned: {why}" for why in dict.fromkeys(reasons.values()))
            return
        said = {part.few_judges(use_of(phase)) for part in parts.values()}  # Warned of already.
        for (stream, component), reason in reasons.items():
            where = f"reward.components.{component}" if component else "reward"
            if reason not in said:
                yield f"{where}: no value of stream {stream} reaches a token: {reason}"

    def _reason(self, phase: Recipe, stream: str, component: str) -> str:
        """Return why a stream has no value: the first of the causes that are known."""
        for name, reward in phase.reward.parts().items():
            if component in ("", name) and stream in reward.streams:
                reason = (
                    (None if self.answers else _without_answers(reward))
                    or self._without_votes(phase, reward)
                    or reward.why_no_signal(stream, use_of(phase))
                )
                if reason is not None:
                    return reason
        return _levelled(phase, stream)

    def _without_votes(self, phase: Recipe, reward: RewardConfig) -> str | None:
        debate, rules = phase.debate, phase.debate.protocol()
        if "votes" not in reward.needed() or (self.compares and self.asked):
            return None
        if not self.compares:
            problem = f"contract {debate.contract_rules()} has no comparison section"
            wanted = "one that has, such as three_section"
        else:
            problem = (
                "nobody is shown two other agents to compare: found "
                f"{many(debate.num_agents, 'agent')}, {many(debate.max_rounds, 'round')}, topology "
                f"{rules.topology}, degree {rules.degree or 'none'} and history_rounds "
                f"{rules.history_rounds}"
            )
            wanted = "at least 3 agents, who see two others' earlier turns"
        return f"{reward.type} counts comparisons, and {problem}; expected {wanted}"


@contextmanager
def quiet_rewards() -> Iterator[None]:
    """Keep rewards from naming the questions of the script that they leave out."""
    logger = logging.getLogger("debate_rewards")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def streams_error(phase: Recipe) -> str | None:
    """Return an error where no stream that the reward has values for is trained."""
    known = all(part.can_be_tried for part in phase.reward.parts().values())
    if phase.loss.supervised or not known or _given(phase):
        return None
    paid, streams = phase.reward.streams, phase.advantage.streams
    found = ", ".join(f"{name} (weight {stream.weight:g})" for name, stream in streams.items())
    return (
        f"advantage.streams: found {found or 'none'}, and {phase.reward.type} has values for "
        f"{', '.join(paid)} alone, so no token would be trained; expected {paid[0]}: {{weight: 1}}"
    )


def other_form_warnings(phase: Recipe, *, answers: bool) -> Iterator[str]:
    """Yield one sentence for each form of `rollout.other_forms` whose debates earn nothing."""
    for number, form in enumerate(phase.rollout.other_forms):
        alone = phase.rollout.model_copy(update={"other_forms": ()})
        played = phase.model_copy(update={"debate": form, "rollout": alone})
        signal = SignalCheck.of(played, answers=answers)
        if signal is not None and signal.given and signal.teaches_nothing:
            reasons = ", ".join(signal.warnings(played))
            yield f"rollout.other_forms.{number}: debates of type {form.type}: {reasons}"


def truth_error(phase: Recipe) -> str | None:
    """Return an error where the phase learns from answers alone, when its questions have none."""
    without = [_without_answers(part) for part in phase.reward.parts().values()]
    return without[0] if all(without) else None


def use_of(phase: Recipe) -> RewardContext:
    """Return what a phase uses its reward on."""
    judge = phase.advantage.streams.get("judge")
    return RewardContext(
        rules=phase.debate.protocol(),
        questions=phase.data.batch_size,
        max_tokens=phase.rollout.max_tokens,
        judge_weight=0.0 if judge is None else judge.weight,
        baseline=phase.advantage.baseline_of("generator"),
    )


def _given(phase: Recipe) -> tuple[Taught, ...]:
    """Return the trained streams that have values, with the component that gives these."""
    reward, streams = phase.reward, phase.advantage.streams
    weights = reward.part_weights()
    return tuple(
        dict.fromkeys(
            (stream, name if reward.adds_advantages else "")
            for name, part in reward.parts().items()
            for stream in part.streams
            if weights[name] != 0 and stream in streams and streams[stream].weight != 0
        )
    )


def _without_answers(reward: RewardConfig) -> str | None:
    if "answers" not in reward.needed():
        return None
    return (
        f"{reward.type} compares with the questions' own answers, and no training question has "
        "one; expected data.fields.answer to name a key that rows have, or another reward"
    )


def _levelled(phase: Recipe, stream: str) -> str:
    own, baseline = phase.advantage.streams[stream], phase.advantage.baseline_of(stream)
    used = phase.debate.contracts() or (phase.debate.contract_rules(),)
    sections = tuple(dict.fromkeys(name for one in used for name in get_contract(one).sections))
    if sections and not any(own.section_weights(stream, sections).values()):
        return (
            f"advantage.streams.{stream}.sections: found none that is a section of contract "
            f"{', '.join(map(str, used))}; expected some of {', '.join(sections)}"
        )
    return (
        f"advantage.baseline: found {baseline}, under which every value is alone in its group, or "
        "like all others there; expected another baseline, or more rollout.debates_per_question"
    )
