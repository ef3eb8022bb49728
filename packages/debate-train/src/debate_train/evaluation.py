"""Measure a policy: alone, by majority, by the votes of its peers, and as a judge."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from debate_protocol.forms import DebateForm, Direct
from debate_protocol.types import DebateRun, Question, Transcript
from debate_train.playing.watching import Watch, unwatched

if TYPE_CHECKING:
    from debate_rollout.engine import Engine
    from debate_train.recipe import Recipe

DIRECT: Mapping[str, str] = {"correct": "eval/direct/accuracy"}
"""What is taken from single-turn replies: name in `debate_rewards.metrics` to ours."""
DEBATE: Mapping[str, str] = {
    "decision/majority": "eval/majority/accuracy",
    "decision/peer_vote": "eval/peer_vote/accuracy",
    "judge/accuracy": "eval/judge/accuracy",
    "format_all": "eval/format",
    "correct": "eval/last_round/accuracy",
    "judge/equal_share": "eval/judge/equal_share",
    "comparisons_made": "eval/comparisons_made",
    "pass@k": "eval/pass@k",
    "diversity/round_0": "eval/diversity/round_0",
}
"""What is taken from debates."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over questions with its 95 % bootstrap interval.

    The interval resamples questions, each with all its runs, so that it covers both which
    questions were drawn and how replies were sampled. `run_deviation` is the standard deviation
    (n − 1) between the means of the runs, None for one run: the noise of sampling alone.
    """

    mean: float
    low: float
    high: float
    questions: int
    run_deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of one evaluation, by name."""

    found: Mapping[str, Measure]
    transcripts: Sequence[Transcript]

    def means(self) -> dict[str, float]:
        """Return the means alone."""
        return {name: measure.mean for name, measure in self.found.items()}


def evaluate(
    recipe: "Recipe",
    engine: "Engine",
    questions: Sequence[Question],
    name: str,
    watch: Watch = unwatched,
) -> Measures:
    """Let the policy answer alone and debate, and measure both.

    `name` seeds the sampling, so that evaluations before and after a run differ only by the
    policy. `watch` sees what is played.
    """
    evaluation = recipe.evaluation
    form, rollout = evaluation.form(recipe.debate), evaluation.rollout(recipe.rollout)
    alone, debates = _starts(recipe, form, questions, name)

    def play(turns: int, what: str) -> Play:
        return lambda runs: rollout.play(watch(runs, turns, f"{name} {what}"), engine)

    values = _by_run(play(1, "alone"), alone, DIRECT)[0]
    transcripts: list[Transcript] = []
    if form.turn_count() > 1:
        found, transcripts = _by_run(play(form.turn_count(), "debates"), debates, DEBATE)
        values |= found
    return Measures({key: _measure(one) for key, one in values.items()}, transcripts)


Runs = Sequence[Sequence[DebateRun]]
"""What is played, for each run."""
Play = Callable[[Sequence[DebateRun]], list[Transcript]]


def _starts(
    recipe: "Recipe", form: DebateForm, questions: Sequence[Question], name: str
) -> tuple[Runs, Runs]:
    """Return the single-turn replies and the debates of each run."""
    from debate_rewards.answers import same_answer

    single, samples = direct_form(form), recipe.evaluation.direct_samples
    alone: list[list[DebateRun]] = []
    debates: list[list[DebateRun]] = []
    for run in range(recipe.evaluation.runs):
        mark = f"/run-{run + 1}" if run else ""

        def seed(question: Question, copy: int, mark: str = mark) -> int:
            text = f"{recipe.seed}/{name}{mark}/{question.id}/{copy}"
            return zlib.crc32(text.encode())

        alone.append(
            [
                single.start(q, seed=seed(q, copy), debate_id=f"{q.id}{mark}/{copy}")
                for q in questions
                for copy in range(samples)
            ]
        )
        debates.append(
            [
                form.start(
                    q,
                    seed=seed(q, -1),
                    debate_id=f"{q.id}{mark}",
                    same_answer=partial(same_answer, q),
                )
                for q in questions
            ]
        )
    return alone, debates


Values = dict[str, "_Values"]


@dataclass(frozen=True, slots=True)
class _Values:
    """One measure: each question's value over all runs, and each run's mean over questions."""

    by_question: Mapping[str, float]
    by_run: Sequence[float]


def _by_run(play: Play, runs: Runs, wanted: Mapping[str, str]) -> tuple[Values, list[Transcript]]:
    """Play all runs at once; return the wanted measures by our names, and the transcripts."""
    from debate_rewards.metrics import question_values

    played = play([one for run in runs for one in run])
    size = len(played) // len(runs)
    each = [question_values(played[k * size : (k + 1) * size]) for k in range(len(runs))]
    pooled = each[0] if len(runs) == 1 else question_values(played)
    values = {
        ours: _Values(
            pooled[theirs], [fmean(one[theirs].values()) for one in each if theirs in one]
        )
        for theirs, ours in wanted.items()
        if theirs in pooled
    }
    return values, played


def _measure(values: _Values) -> Measure:
    from debate_rewards.intervals import bootstrap_interval

    interval = bootstrap_interval(list(values.by_question.values()))
    several = len(values.by_run) > 1
    deviation = stdev(values.by_run) if several else None
    return Measure(*interval, len(values.by_question), deviation)


def direct_form(form: DebateForm) -> Direct:
    """Return the form in which one agent answers once, prompted as in this form."""
    return Direct(**dict(form.speaking()))
