"""Measure a policy by what its modes play: means with intervals."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, stdev

from debate_protocol.transcripts.files import with_counts
from debate_protocol.types import DebateRun, Question, Transcript
from debate_report.timeline import render
from debate_rewards.answer_checking import same_answer
from debate_rewards.estimates import bootstrap_estimates, bootstrap_interval, pooled, range_of
from debate_rollout.engine import Engine
from debate_train.evaluation.modes import Curves, EvaluationMode, Plays, Point, Values
from debate_train.evaluation.settings import Setup, full_name, is_standard
from debate_train.playing import Watch, unwatched
from debate_train.playing.shared_turns import SharedTurns

__all__ = ["Measure", "Measures", "evaluate"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over questions, or a ratio of sums over them, with its 95 % bootstrap interval.

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
    """All measures of one evaluation by their full names, and what was played in each mode."""

    found: Mapping[str, Measure]
    played: Mapping[str, Sequence[Transcript]] = field(repr=False)
    values: Values = field(default_factory=dict, repr=False)
    """Each figure's value for each question, over all runs: what two policies are compared on."""
    curves: Curves = field(default_factory=dict, repr=False)
    """The curves of all modes over all runs, named as figures are."""

    def means(self) -> dict[str, float]:
        """Return the means alone."""
        return {name: measure.mean for name, measure in self.found.items()}

    def _repr_html_(self) -> str:
        """Return the table of all measures, as notebooks show it."""
        rows = [
            (name, f"{one.mean:.3f}", f"[{one.low:.3f}, {one.high:.3f}]", f"{one.questions:,}")
            for name, one in self.found.items()
        ]
        return render("figures.html", tables=[[("measure", "mean", "95 %", "questions"), *rows]])

    def votes(self) -> dict[str, float]:
        """Return the accuracy of the majority of 2, 4, 8, … direct replies: `eval/direct/maj@k`.

        None of these is a figure of its own: they are points of a curve.
        """
        points = self.curves.get("eval/direct/maj@k", ())
        chosen = (one for one in points if one.x > 1 and one.x & (one.x - 1) == 0)
        return {f"eval/direct/maj@{one.x}": fmean(one.values.values()) for one in chosen}


def measures_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Return measures as JSON holds them."""
    return {
        name: {key: value for key, value in asdict(measure).items() if value is not None}
        for name, measure in measures.found.items()
    }


def evaluate(
    setup: Setup,
    engine: Engine,
    questions: Sequence[Question],
    name: str,
    watch: Watch = unwatched,
    shared: SharedTurns | None = None,
) -> Measures:
    """Play every mode on the same questions, and measure it.

    Args:
        setup: The form, the modes, and how replies are sampled.
        engine: Samples; one of several policies sends each ask to the policy that it names.
        questions: Of one split.
        name: Seeds the sampling, so that evaluations before and after a run differ only by the
            policy.
        watch: Sees what is played.
        shared: Replies that are known from before: nothing is asked for again.
    """
    found: dict[str, Measure] = {}
    values: dict[str, Mapping[str, float]] = {}
    played: dict[str, Sequence[Transcript]] = {}
    curves: dict[str, Sequence[Point]] = {}
    shared = SharedTurns() if shared is None else shared
    for mode_name, mode in setup.modes.items():
        runs: list[list[Sequence[Transcript]]] = [[] for _ in range(setup.runs)]
        for plays in mode.plays(setup.form):
            first, each = plays.share
            debates = [
                shared.over(debate)
                for run in range(setup.runs)
                for debate in _start(setup.seed, plays, questions[first::each], name, run)
            ]
            what = plays.what if is_standard(mode_name) else f"{mode_name} {plays.what}"
            watched = watch(debates, plays.form.turn_count(), f"{name} {what}")
            ended = [with_counts(one) for one in setup.rollout.play(watched, engine)]
            size = len(ended) // setup.runs
            for run, its in enumerate(runs):
                its.append(ended[run * size : (run + 1) * size])
        played[mode_name] = [debate for its in runs for part in its for debate in part]
        if runs[0]:
            for figure, measure, by_question in _measured(mode, runs, mode.figures(setup.form)):
                found[full_name(mode_name, figure)] = measure
                if by_question is not None:
                    values[full_name(mode_name, figure)] = by_question
            for curve, points in mode.curves(_pooled(runs)).items():
                curves[full_name(mode_name, curve)] = points
    return Measures(found, played, values, curves)


def _start(
    seed: int, plays: Plays, questions: Sequence[Question], name: str, run: int
) -> list[DebateRun]:
    """Return the debates of one run, each seeded by its question, run and copy."""
    mark = f"/run-{run + 1}" if run else ""

    def seed_of(question: Question, copy: int) -> int:
        return zlib.crc32(f"{seed}/{name}{mark}/{question.id}/{copy}".encode())

    return [
        plays.form.start(
            question,
            seed=seed_of(question, copy),
            other=(other, seed_of(other, copy)),
            debate_id="/".join(
                filter(None, (f"{question.id}{mark}", plays.mark, str(copy) if copy >= 0 else ""))
            ),
            same_answer=partial(same_answer, question),
        )
        for question, other in zip(questions, [*questions[1:], *questions[:1]], strict=True)
        for copy in plays.copies
    ]


def _measured(
    mode: EvaluationMode, runs: Sequence[Sequence[Sequence[Transcript]]], figures: Mapping[str, str]
) -> Iterator[tuple[str, Measure, Mapping[str, float] | None]]:
    """Yield the mode's figures, each with its values, and then its ratios of sums over questions.

    What the mode does not name is left out.
    """
    parts = [*runs, _pooled(runs)] if len(runs) > 1 else runs
    values, ratios = [mode.values(one) for one in parts], [mode.ratios(one) for one in parts]
    for name in figures:
        if found := values[-1].get(name):
            interval = bootstrap_interval(list(found.values()), within=range_of(name))
            means = [fmean(one[name].values()) for one in values[: len(runs)] if one.get(name)]
            yield name, Measure(*interval, len(found), _deviation(means)), found
    for name in figures:
        rows = [[{name: sums} for sums in one.get(name, {}).values()] for one in ratios]
        every = [pooled(own).values() for own in rows]
        if name in every[-1]:
            whole = bootstrap_estimates(rows[-1])[name]
            deviation = _deviation([one[name] for one in every[: len(runs)] if name in one])
            ends = whole.low, whole.high
            yield name, Measure(whole.value, *ends, whole.questions, deviation), None


def _deviation(means: Sequence[float]) -> float | None:
    return stdev(means) if len(means) > 1 else None


def _pooled(runs: Sequence[Sequence[Sequence[Transcript]]]) -> list[list[Transcript]]:
    """Return what was played of each of a mode's plays, over all runs."""
    return [[one for part in parts for one in part] for parts in zip(*runs, strict=True)]
