"""Our detectors, one table: what each measures, its bounds, and what to do. See docs/health.md."""

from math import sqrt
from typing import ClassVar, Literal

from debate_train.health.detector import Detector, Due, History, accuracy_for, votes_of

_START = ("eval/start/learned/accuracy", "eval/start/opponent/accuracy")


class LookDetector(Detector):
    """The base class of those that compare a look at the dev split with that of the start.

    They are for phases that learn from pairs, whose steps play no debates.
    """

    due: ClassVar[Due] = "look"

    def figure(self, seen: History) -> float | None:
        """Return what the last look has."""
        return seen.looks[-1].get(self.metric) if seen.facts.pairs else None

    def compared(self, seen: History) -> tuple[float | None, float]:
        """Return what the look of the phase's start has; nothing is known of the error."""
        return (seen.start or {}).get(self.metric), 0.0


class Metric(Detector):
    """Any metric of steps, with bounds of the recipe's own."""

    type: Literal["metric"] = "metric"


class RewardAccuracy(Detector):
    """Whether what the reward values most is right."""

    type: Literal["reward_accuracy"] = "reward_accuracy"
    metric: str = "reward/accuracy"
    below: float | None = 0.5
    fall: float | None = 0.15
    advice: str = (
        "the reward points away from the truth: stop before the policy follows it; start from a "
        "better judge, or mix in verifiable rewards (reward.type: mixed)"
    )


class Collapse(Detector):
    """Whether first answers, which saw nobody else's, are right less often than at the start."""

    type: Literal["collapse"] = "collapse"
    metric: str = "train/accuracy/round_0"
    fall: float | None = 0.05
    advice: str = (
        "training undoes what the start could do: go back to a checkpoint before the fall; lower "
        "the learning rate, raise loss.kl.weight, or mix in verifiable rewards"
    )


class Transition(LookDetector):
    """The base class of shares of answers in debates that are right, given the round before."""

    sigmas: float = 2.0

    def compared(self, seen: History) -> tuple[float | None, float]:
        """Return that of the start, and the error as if each question had one such answer."""
        start, now = (seen.start or {}).get(self.metric), self.figure(seen)
        shares = [one for one in (start, now) if one is not None]
        spread = sum(max(0.0, share * (1 - share)) for share in shares)
        return start, sqrt(spread / max(1, seen.facts.questions))


class KeptRight(Transition):
    """Answers of debates that are right again, of those that were right in the round before."""

    type: Literal["kept_right"] = "kept_right"
    metric: str = "kept_right"
    fall: float | None = 0.05
    advice: str = (
        "right answers are talked away, more than at the start: see whether what is learned from "
        "ever praises a right answer (pair_sides); take more of these, lower the learning rate, or "
        "go back to the start (keep_if)"
    )

    def _changed(self, value: float, seen: History) -> str | None:
        said, won = super()._changed(value, seen), "turned_right"
        then, now = (seen.start or {}).get(won), seen.looks[-1].get(won)
        if said is None or then is None or now is None:
            return said
        return f"{said}; of wrong ones {now:.3g} became right, at the start {then:.3g}"


class TurnedRight(Transition):
    """Answers of debates that are right, of those that were wrong in the round before."""

    type: Literal["turned_right"] = "turned_right"
    metric: str = "turned_right"
    share: float | None = 0.5
    advice: str = (
        "wrong answers stay wrong, more than at the start: see whether what is learned from ever "
        "objects to a wrong answer (pair_sides); lower the learning rate, or go back to the start "
        "(keep_if)"
    )


class StartVote(Detector):
    """A vote of the policy's replies against one of its start's, for the same tokens.

    These are the tokens that training has sampled for a question so far, or those of all replies
    that the start was measured with where these are fewer.
    """

    due: ClassVar[Due] = "look"
    type: Literal["start_vote"] = "start_vote"
    below: float | None = -0.1
    advice: str = (
        "for the tokens that training spends on a question, a vote of the start's replies is now "
        "better than one of the policy's: go back to an earlier checkpoint"
    )

    def figure(self, seen: History) -> float | None:
        """Return the policy's maj@k minus the start's, each k what the tokens buy."""
        start, now = seen.start or {}, seen.looks[-1]
        if start.get("step") == now.get("step") or not (had := votes_of(start)):
            return None
        most = had[-1][0] if (spent := now["tokens"]) is None else min(had[-1][0], spent)
        before, after = accuracy_for(had, most), accuracy_for(votes_of(now), most)
        return None if before is None or after is None else after - before


class EqualVotes(Detector):
    """Votes that prefer nobody."""

    type: Literal["equal_votes"] = "equal_votes"
    metric: str = "judge/equal_share"
    above: float | None = 0.95
    advice: str = (
        "judges agree by preferring nobody: use consensus: peer_prediction, a judge stream that is "
        "not centred and a lower learning rate, or give the judge stream weight 0"
    )


class Coverage(Detector):
    """Pairs that are compared, of those that were to be."""

    type: Literal["coverage"] = "coverage"
    metric: str = "train/comparisons_made"
    below: float | None = 0.1
    fall: float | None = 0.2
    advice: str = (
        "agents stop comparing: give pairs that are left out a price (reward.judge_credit: line or "
        "segment), do not centre the judge stream, lower the learning rate, or raise loss.kl.weight"
    )


class Format(Detector):
    """Turns in which an answer can be read."""

    type: Literal["format"] = "format"
    metric: str = "train/format_all"
    below: float | None = 0.05
    fall: float | None = 0.1
    advice: str = (
        "replies lose their form: lower the learning rate, raise loss.kl.weight, look at "
        "rollout/truncated_fraction, or warm-start on demonstrations"
    )


class SelfPlayStrength(Detector):
    """Accuracy beyond that of the phase's start in the same debates, while the reward holds."""

    due: ClassVar[Due] = "look"
    type: Literal["self_play_strength"] = "self_play_strength"
    fall: float | None = 0.1
    advice: str = (
        "the reward of self-play does not fall, but against its own start the policy loses: it "
        "learns what its peers like; mix in verifiable rewards, or go back to the best look"
    )

    def figure(self, seen: History) -> float | None:
        """Return the policy's accuracy minus its start's in the last look."""
        return _strength(seen, -1)

    def _changed(self, value: float, seen: History) -> str | None:
        best, at = max(
            ((s, n) for n in range(len(seen.looks)) if (s := _strength(seen, n)) is not None),
            default=(0.0, None),
        )
        then = None if at is None else seen.looks[at]["reward/total"]
        if best < 0:  # At its start the policy is as strong as that.
            best, then = 0.0, seen.begun("reward/total")
        now, noise = seen.now("reward/total"), self.sigmas * seen.noise("reward/total")
        if self.fall is None or value >= best - self.fall or now is None or then is None:
            return None
        if now < then - noise:
            return None
        return (
            f"{value:+.3g}, at best {best:+.3g}, while the reward went from {then:.3g} to {now:.3g}"
        )


class OneWinner(Detector):
    """The agent, so the persona, that wins the largest share of the verdicts about it."""

    type: Literal["one_winner"] = "one_winner"
    above: float | None = 0.9
    advice: str = (
        "one agent always wins, so votes follow who speaks and not what is said: compare its "
        "accuracy with the others', hide the names of personas, or train with personas: none"
    )

    def figure(self, seen: History) -> float | None:
        """Return the largest share of verdicts other than `=` that an agent wins."""
        names = (f"judge/wins/agent_{agent}" for agent in range(seen.facts.agents))
        return max((s for name in names if (s := seen.now(name)) is not None), default=None)


class FirstPosition(Detector):
    """Verdicts for the turn that stands first."""

    type: Literal["first_position"] = "first_position"
    metric: str = "judge/first_shown"
    above: float | None = 0.9
    below: float | None = 0.1
    advice: str = (
        "judges prefer a place and not an answer: measure evaluation.modes with type "
        "swapped_judging, and train judges on pairs in both orders"
    )


class Length(Detector):
    """Sampled tokens of a turn."""

    type: Literal["length"] = "length"
    metric: str = "env/all/ac_tokens_per_turn"
    times: float | None = 2.0
    share: float | None = 0.5
    advice: str = (
        "see in transcripts/ what it is. Replies that grow, reasoning or padding: use the reward "
        "overlong, or loss.aggregation: token_mean_batch. Replies that shrink, reasoning that is "
        "left out: lower the learning rate, raise loss.kl.weight or, of pairs, loss.beta, and see "
        "whether what is rewarded or chosen is the shorter"
    )


class AnswerLength(LookDetector):
    """Sampled tokens of an answer in debates on the dev split; `length` is of those of steps."""

    type: Literal["answer_length"] = "answer_length"
    metric: str = "eval/tokens/answer"
    times: float | None = 2.0
    share: float | None = 0.5
    advice: str = Length().advice


class Truncation(Detector):
    """Replies that end at their limit of tokens."""

    type: Literal["truncation"] = "truncation"
    metric: str = "rollout/truncated_fraction"
    rise: float | None = 0.2
    advice: str = "replies no longer end by themselves: raise rollout.max_tokens, or use overlong"


class Entropy(Detector):
    """Mean entropy of the policy at the sampled tokens."""

    type: Literal["entropy"] = "entropy"
    metric: str = "optim/entropy"
    share: float | None = 0.2
    advice: str = (
        "the policy hardly varies, so there is little left to learn from: raise loss.kl.weight or "
        "the upper clip range, lower the learning rate, or take harder questions"
    )


class Diversity(Detector):
    """How far first answers to a question differ: 0 where all agents give one, 1 where none."""

    type: Literal["diversity"] = "diversity"
    metric: str = "train/diversity/round_0"
    below: float | None = 0.02
    advice: str = (
        "all agents give the same answer, right or wrong, so comparing them teaches nothing: take "
        "harder questions, more agents, personas or a higher temperature"
    )

    def figure(self, seen: History) -> float | None:
        """Return (classes / answers − 1/N) / (1 − 1/N) of the first round."""
        classes, agents = seen.now(self.metric), seen.facts.agents
        return None if classes is None or agents < 2 else (classes * agents - 1) / (agents - 1)

    def is_excused(self, seen: History) -> bool:
        """Return whether the answers agree because they are right."""
        return (seen.now("train/accuracy/round_0") or 0.0) >= 0.9


class Unheard(Detector):
    """Turns of the first round that name an agent they were not shown."""

    type: Literal["unheard"] = "unheard"
    metric: str = "train/unheard/named"
    above: float | None = 0.1
    advice: str = (
        "agents make up what others said before anyone has spoken: warm-start on demonstrations, "
        "or say in the prompt that nobody has spoken yet"
    )


class Reference(Detector):
    """The KL to the phase's start: 0 before the first update, and not 0 ever after."""

    type: Literal["reference"] = "reference"
    metric: str = "optim/kl_reference"
    above: float | None = 1e-3
    advice: str = (
        "the KL reference is not the policy at the phase's start: look at loss.kl.reference and, "
        "after a resume, at reference-*.safetensors of the checkpoint"
    )

    def figure(self, seen: History) -> float | None:
        """Return the KL of the phase's first step, before its update."""
        facts = seen.facts
        if not (facts.keeps_start and not facts.several_updates and seen.first):
            return None
        value = seen.first[0].get(self.metric)
        return None if value is None else float(value)

    def _changed(self, value: float, seen: History) -> str | None:
        now, moved = seen.now(self.metric), seen.now("optim/grad_norm")
        if now == 0 and moved:
            return f"0 for {seen.window} steps, though each moves the policy"
        return None


class PairSides(Detector):
    """The share of a set's pairs on the side that has fewer of them."""

    type: Literal["pair_sides"] = "pair_sides"
    metric: str = "pairs/smaller_side"
    below: float | None = 0.2
    advice: str = (
        "nearly all pairs are of one side, so it is that side that is learned, whatever was asked: "
        "see that both right and wrong answers have guided branches, to a wrong answer, too; take "
        "pairs_per_state: both, or questions of which the start gets about half right"
    )

    def figure(self, seen: History) -> float | None:
        """Return it from the first step on: a phase has one set."""
        return seen.last[-1].get(self.metric)


class PairTruth(Detector):
    """Right replies among the chosen ones minus right ones among the rejected, of all pairs."""

    type: Literal["pair_truth"] = "pair_truth"
    metric: str = "pairs/truth"
    below: float | None = 0.0
    advice: str = (
        "pairs prefer wrong replies to right ones: learn from pairs by the answers (by: answer), "
        "from better judges, or from questions whose majority is right"
    )

    def figure(self, seen: History) -> float | None:
        """Return it from the first step on: a phase has one set."""
        return seen.last[-1].get(self.metric)


class PreferenceMargin(Detector):
    """How much more the policy has come to prefer the chosen replies than the phase's start."""

    type: Literal["preference_margin"] = "preference_margin"
    metric: str = "optim/preference_margin"
    advice: str = (
        "nothing of the pairs is learned, or it is lost again: raise the learning rate where "
        "optim/grad_norm is steady, lower it where that grows, or look for pairs that contradict "
        "each other"
    )

    def _changed(self, value: float, seen: History) -> str | None:
        start = seen.begun(self.metric)
        if start is None or seen.steps < 2 * seen.window or value > start:
            return None
        return f"{value:.3g}, in the phase's first steps {start:.3g}: it has not grown"


class PreferenceAccuracy(Detector):
    """Pairs whose chosen reply gained more than the rejected one."""

    type: Literal["preference_accuracy"] = "preference_accuracy"
    metric: str = "optim/preference_accuracy"
    below: float | None = 0.5
    advice: str = PreferenceMargin().advice

    def is_excused(self, seen: History) -> bool:
        """Return whether there were too few steps: of the first one none has gained."""
        return seen.steps < 2 * seen.window


OWN = (
    RewardAccuracy,
    Collapse,
    KeptRight,
    TurnedRight,
    StartVote,
    EqualVotes,
    Coverage,
    Format,
    SelfPlayStrength,
    OneWinner,
    FirstPosition,
    Length,
    AnswerLength,
    Truncation,
    Entropy,
    Diversity,
    Unheard,
    Reference,
    PairSides,
    PairTruth,
    PreferenceMargin,
    PreferenceAccuracy,
)
"""All that are watched unless the recipe says otherwise."""


def _strength(seen: History, look: int) -> float | None:
    own, start = (seen.looks[look].get(name) for name in _START)
    return None if own is None or start is None else float(own) - float(start)
