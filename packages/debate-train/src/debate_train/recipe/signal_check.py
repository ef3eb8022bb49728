"""Whether anything can be learned: scripted debates through form, reward and advantages."""

from collections.abc import Iterator
from dataclasses import dataclass

from debate_protocol.parsing import get_contract
from debate_rewards.reward import (
    ReadDebate,
    RewardConfig,
    RewardContext,
    read_debate,
)
from debate_train.errors import errors_only
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.scripted_debates import scripted_step, small_recipe
from debate_train.recipe.step_counts import many
from debate_train.recipe.stream_shares import ValuedStream, credit_mass

MAX_STEPS = 6
"""Scripted steps after which a value that never came is taken never to come."""


@dataclass(frozen=True, slots=True)
class SignalCheck:
    """Streams with an advantage in scripted debates of a phase.

    Attributes:
        trained: The streams with values and weight, by component.
        taught: The trained streams with an advantage on some token; no turn fails.
        can_compare: Whether some agent was shown two other agents and is asked to compare them.
        has_comparison_section: Whether the contract has room for comparisons.
        answers: Whether the questions have answers.
    """

    trained: tuple[ValuedStream, ...]
    taught: frozenset[ValuedStream]
    can_compare: bool
    has_comparison_section: bool
    answers: bool

    @classmethod
    def of(cls, phase: Recipe, *, answers: bool = True) -> "SignalCheck | None":
        """Play scripted debates of a phase.

        Args:
            phase: The phase.
            answers: Whether its questions have answers.

        Returns:
            `None` without evidence: the phase trains or samples no stream, the reward is of another
            package, or the debate is too large to play.
        """
        if not learns_from_rewards(phase):
            return None
        small = small_recipe(phase)
        if small is None:
            return None
        trained = _trained_streams(phase)
        taught: set[ValuedStream] = set()
        debates: list[ReadDebate] = []
        # Rewards warn of questions that they leave out, and these are made up.
        with errors_only("debate_rewards"):
            for number in range(MAX_STEPS):
                step = scripted_step(small, number, answers=answers)
                mass = credit_mass(small, step)
                taught.update(valued for valued in mass if mass[valued] > 0)
                debates += map(read_debate, step)
                if taught.issuperset(trained):
                    break
        judges = [(debate, turn) for debate in debates for turn in debate.judges.values()]
        return cls(
            trained=trained,
            taught=frozenset(taught),
            can_compare=any(debate.expected_pairs(turn) > 0 for debate, turn in judges),
            has_comparison_section=any(debate.compares for debate in debates),
            answers=answers,
        )

    @property
    def teaches_nothing(self) -> bool:
        """Whether no value reached any token."""
        return self.taught.isdisjoint(self.trained)

    def warnings(self, phase: Recipe) -> Iterator[str]:
        """Yield a sentence with the reason for each value of the reward lost before tokens."""
        streams = phase.advantage.streams
        if not self.trained and any(name in streams for name in phase.reward.streams):
            yield (
                "nothing is learned: every stream that the reward has values for has weight 0; "
                "expected a weight in advantage.streams or reward.components"
            )
        reasons = {}
        for valued in self.trained:
            if valued not in self.taught:
                reasons[valued] = self._reason(phase, valued)
        if self.teaches_nothing:
            for reason in dict.fromkeys(reasons.values()):
                yield f"nothing is learned: {reason}"
            return
        # A warning of few judges comes without scripted debates, too.
        few_judges = []
        for part in phase.reward.parts().values():
            for note in part.reward.notes(reward_context(phase)):
                if note.kind == "few_judges":
                    few_judges.append(note.text)
        for valued, reason in reasons.items():
            key = f"reward.components.{valued.component}" if valued.component else "reward"
            if reason not in few_judges:
                yield f"{key}: no value of stream {valued.stream} reaches a token: {reason}"

    def _reason(self, phase: Recipe, valued: ValuedStream) -> str:
        """Find the first known cause of a stream without values."""
        for name, part in phase.reward.parts().items():
            reward = part.reward
            if valued.component not in ("", name) or valued.stream not in reward.streams:
                continue
            if not self.answers and reward.needs().answers:
                return _needs_answers_text(reward)
            if reward.needs().votes and not (self.has_comparison_section and self.can_compare):
                return self._no_votes_text(phase, reward)
            for note in reward.notes(reward_context(phase)):
                explains = note.kind in ("no_signal", "few_judges")
                if explains and note.stream in (None, valued.stream):
                    return note.text
        return _no_contrast_text(phase, valued.stream)

    def _no_votes_text(self, phase: Recipe, reward: RewardConfig) -> str:
        debate = phase.debate
        protocol = debate.protocol()
        if not self.has_comparison_section:
            problem = f"contract {debate.contract_rules()} has no comparison section"
            expected = "one that has, such as three_section"
        else:
            problem = (
                "nobody is shown two other agents to compare: found "
                f"{many(debate.num_agents, 'agent')}, {many(debate.max_rounds, 'round')}, topology "
                f"{protocol.topology}, degree {protocol.degree or 'none'} and history_rounds "
                f"{protocol.history_rounds}"
            )
            expected = "at least 3 agents, who see two others' earlier turns"
        return f"{reward.type} counts comparisons, and {problem}; expected {expected}"


def streams_error(phase: Recipe) -> str | None:
    """Describe a reward without values for trained streams."""
    if not learns_from_rewards(phase) or _trained_streams(phase):
        return None
    valued_streams = phase.reward.streams
    weights = [f"{n} (weight {s.weight:g})" for n, s in phase.advantage.streams.items()]
    return (
        f"advantage.streams: found {', '.join(weights) or 'none'}, and {phase.reward.type} has "
        f"values for {', '.join(valued_streams)} alone, so no token would be trained; expected "
        f"{valued_streams[0]}: {{weight: 1}}"
    )


def other_form_warnings(phase: Recipe, *, answers: bool) -> Iterator[str]:
    """Yield a sentence for each form of `rollout.other_forms` without earnings."""
    for number, form in enumerate(phase.rollout.other_forms):
        rollout = phase.rollout.model_copy(update={"other_forms": ()})
        form_phase = phase.model_copy(update={"debate": form, "rollout": rollout})
        signal = SignalCheck.of(form_phase, answers=answers)
        if signal is not None and signal.trained and signal.teaches_nothing:
            reasons = ", ".join(signal.warnings(form_phase))
            yield f"rollout.other_forms.{number}: debates of type {form.type}: {reasons}"


def truth_error(phase: Recipe) -> str | None:
    """Describe a phase of learning from answers on questions without answers."""
    rewards = [part.reward for part in phase.reward.parts().values()]
    if all(reward.needs().answers for reward in rewards):
        return _needs_answers_text(rewards[0])
    return None


def reward_context(phase: Recipe) -> RewardContext:
    """Build the context of a phase's reward."""
    judge = phase.advantage.streams.get("judge")
    return RewardContext(
        rules=phase.debate.protocol(),
        questions=phase.data.batch_size,
        max_tokens=phase.rollout.max_tokens,
        judge_weight=0.0 if judge is None else judge.weight,
        baseline=phase.advantage.baseline_of("generator"),
    )


def learns_from_rewards(phase: Recipe) -> bool:
    """Whether a phase's updates follow rewards of scripted debates."""
    parts = phase.reward.parts().values()
    needs_policy = any(part.reward.needs().policy for part in parts)
    return not phase.loss.supervised and not needs_policy


def _trained_streams(phase: Recipe) -> tuple[ValuedStream, ...]:
    """List the streams with values and a weight, each with the component of the values."""
    weights = {name: stream.weight for name, stream in phase.advantage.streams.items()}
    trained: dict[ValuedStream, None] = {}
    for name, part in phase.reward.parts().items():
        for stream in part.reward.streams:
            if part.weight != 0 and weights.get(stream, 0) != 0:
                component = name if part.is_compared_apart else ""
                trained[ValuedStream(stream, component)] = None
    return tuple(trained)


def _needs_answers_text(reward: RewardConfig) -> str:
    return (
        f"{reward.type} compares with the questions' own answers, and no training question has "
        "one; expected data.fields.answer to name a key that rows have, or another reward"
    )


def _no_contrast_text(phase: Recipe, stream: str) -> str:
    """Explain values of the reward lost before tokens."""
    contracts = phase.debate.contracts() or (phase.debate.contract_rules(),)
    sections: dict[str, None] = {}
    for contract in contracts:
        sections.update(dict.fromkeys(get_contract(contract).sections))
    section_weights = phase.advantage.streams[stream].section_weights(stream, tuple(sections))
    if sections and not any(section_weights.values()):
        return (
            f"advantage.streams.{stream}.sections: found none that is a section of contract "
            f"{', '.join(map(str, contracts))}; expected some of {', '.join(sections)}"
        )
    baseline = phase.advantage.baseline_of(stream)
    return (
        f"advantage.baseline: found {baseline}, under which every value is alone in its group, or "
        "like all others there; expected another baseline, or more rollout.debates_per_question"
    )
