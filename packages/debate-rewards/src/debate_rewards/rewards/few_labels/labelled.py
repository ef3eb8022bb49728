"""Labels on a share of the questions, and another reward on the rest."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.types import Transcript
from debate_rewards.answers.checking import answer_classes
from debate_rewards.credits import Score, mean_returns
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.reward_config import Need, RewardConfig, Use
from debate_rewards.rewards.single_rewards import SingleReward
from debate_rewards.rewards.verifiable import Verifiable, has_known_kind
from debate_rewards.votes.ballots import all_votes, ballots, by_pair


class Labelled(RewardConfig):
    """The truth on a share of the questions, and votes or another reward on the others.

    `by` says which questions are labelled. `random`: each with probability `share`, by a hash of
    its id, so that a question is labelled whenever it comes, or never. `votes` and `answers`: of
    the questions of a batch the round(share · number) on which judges or first answers disagree
    the most, equal ones by that hash:

        votes     mean over judged pairs of turns of 1 − Σ f(v)², f(v) the share of verdict v
        answers   1 − Σ f(c)², f(c) the share of answer c among the turns of round 0

    the chance that two drawn with replacement differ; a question without any has 0. All debates
    on a question are pooled.

    On labelled questions `truth` gives the values, and `rest` those of streams that `truth` does
    not have; on the others `rest` gives all. `truth` is called with labelled questions alone, so
    answers of others are not looked at.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["labelled"] = "labelled"
    share: float = Field(ge=0, le=1)
    """Share of the questions that are labelled."""
    by: Literal["random", "votes", "answers"] = "random"
    """Which are: by a hash, or those on which `votes` or first `answers` disagree the most."""
    truth: SingleReward = Verifiable()
    """Reward of debates on labelled questions."""
    rest: SingleReward
    """Reward of debates on the others, and of streams that `truth` does not have."""
    seed: int = 0
    """Of the hash that draws questions."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return tuple(dict.fromkeys((*self.truth.streams, *self.rest.streams)))

    @property
    def least_questions(self) -> int:
        """The fewest questions of a batch with which every stream has values."""
        return self.rest.least_questions

    def needed(self) -> frozenset[Need]:
        """Return what must be there; answers only where some questions are labelled."""
        return self.rest.needed() | (self.truth.needed() if self.share > 0 else frozenset())

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn has a value in a stream."""
        part = self.truth if self.share > 0 and stream in self.truth.streams else self.rest
        return part.silence(stream, use)

    def few_judges(self, use: Use) -> str | None:
        """Return why judges are too few for their stream to teach much."""
        return self.rest.few_judges(use)

    def warnings(self, use: Use) -> list[str]:
        """Return what should be looked at."""
        return [*self.truth.warnings(use), *self.rest.warnings(use)]

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        chosen = self.labelled(transcripts)
        known = [one for one in transcripts if one.question.id in chosen]
        truths = iter(self.truth(known))
        return [
            self._joined(next(truths), score, one.protocol.num_agents)
            if one.question.id in chosen
            else Score(score.credits, score.agents, {**score.metrics, "labelled/share": 0.0})
            for one, score in zip(transcripts, self.rest(transcripts), strict=True)
        ]

    def labelled(self, transcripts: Sequence[Transcript]) -> set[str]:
        """Return the ids of the questions of a batch that are labelled."""
        ids = list(dict.fromkeys(one.question.id for one in transcripts))
        if self.by == "random":
            return {name for name in ids if self._drawn(name) < self.share}
        debates: dict[str, list[ReadDebate]] = {name: [] for name in ids}
        for one in transcripts:
            debates[one.question.id].append(read_debate(one))
        measure = _split_votes if self.by == "votes" else _split_answers
        split = {name: measure(debates[name]) for name in ids}
        ids.sort(key=lambda name: (-split[name], self._drawn(name)))
        return set(ids[: round(self.share * len(ids))])

    def _drawn(self, name: str) -> float:
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def _joined(self, truth: Score, rest: Score, num_agents: int) -> Score:
        own = [one for one in rest.credits if one.stream not in self.truth.streams]
        credits = (*truth.credits, *own)
        metrics = {**rest.metrics, **truth.metrics, "labelled/share": 1.0}
        return Score(credits, mean_returns(credits, num_agents), metrics)


def _split(values: Iterable[Hashable]) -> float:
    counts = Counter(values)
    total = sum(counts.values())
    return 1 - sum((count / total) ** 2 for count in counts.values()) if total else 0.0


def _split_votes(debates: Sequence[ReadDebate]) -> float:
    pairs = [
        _split(vote.verdict for vote in votes)
        for debate in debates
        for votes in by_pair(all_votes(ballots(debate))).values()
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def _split_answers(debates: Sequence[ReadDebate]) -> float:
    question = debates[0].transcript.question
    if not has_known_kind(question):
        return 0.0
    turns = [t for debate in debates for key, t in debate.turns.items() if key.round == 0]
    said = [turn.parsed.answer for turn in turns if not turn.failed]
    return _split(one for one in answer_classes(question, said) if one is not None)
