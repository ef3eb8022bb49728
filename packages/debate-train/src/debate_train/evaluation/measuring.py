"""Measure a policy in all modes of an evaluation: means with intervals."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, stdev

from debate_protocol.transcripts.files import with_counts
from debate_protocol.types import DebateRun, Question, Transcript
from debate_rewards.answer_checking import same_answer
from debate_rewards.estimates import bootstrap_estimates, bootstrap_interval, pooled, range_of
from debate_rollout.engine import Engine
from debate_train.evaluation.modes import CurvePoint, Curves, EvaluationMode, Plays, Values
from debate_train.evaluation.settings import Setup, full_name, is_standard
from debate_train.playing import Watch, unwatched
from debate_train.playing.shared_turns import SharedTurns

__all__ = ["Measure", "Measures", "evaluate"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over questions, or a ratio of sums over them, with a 95 % bootstrap interval.

    The interval resamples questions, each with all runs, to cover the draw of questions as well
    as the sampling of replies. `run_deviation` is the standard deviation
    (n − 1) between the means of the runs, `None` for a single run: only the noise of sampling.
    """

    mean: float
    low: float
    high: float
    questions: int
    run_deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of an evaluation by their full names, and the debates of each mode."""

    found: Mapping[str, Measure]
    played: Mapping[str, Sequence[Transcript]] = field(repr=False)
    values: Values = field(default_factory=dict, repr=False)
    """Each figure's value for each question, over all runs; two policies are compared by these."""
    curves: Curves = field(default_factory=dict, repr=False)
    """The curves of all modes over all runs, named as figures are."""

    def means(self) -> dict[str, float]:
        """Look up the mean of each measure."""
        return {name: measure.mean for name, measure in self.found.items()}

    def _repr_html_(self) -> str:
        """Render the table of all measures for a notebook."""
        from debate_report.page_templates import render

        rows = [("measure", "mean", "95 %", "questions")]
        for name, measure in self.found.items():
            interval = f"[{measure.low:.3f}, {measure.high:.3f}]"
            rows.append((name, f"{measure.mean:.3f}", interval, f"{measure.questions:,}"))
        return render("figures.html", tables=[rows])

    def votes(self) -> dict[str, float]:
        """Compute the accuracy of the majority of 2, 4, 8, … direct replies: `eval/direct/maj@k`.

        These are points of a curve and no figures.
        """
        accuracies = {}
        for point in self.curves.get("eval/direct/maj@k", ()):
            is_power_of_two = point.x & (point.x - 1) == 0
            if point.x > 1 and is_power_of_two:
                accuracies[f"eval/direct/maj@{point.x}"] = fmean(point.values.values())
        return accuracies


def measures_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Convert measures to JSON; values of `None` are left out."""
    converted = {}
    for name, measure in measures.found.items():
        values = asdict(measure).items()
        converted[name] = {key: value for key, value in values if value is not None}
    return converted


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
        setup: the form, the modes, and the sampling of replies.
        engine: samples replies; an engine of several policies routes each request by policy.
        questions: questions of a split.
        name: seeds the sampling: evaluations before and after a run differ only by the
            policy.
        watch: observes the debates while they are played.
        shared: replies from earlier evaluations, not to be sampled again.
    """
    measures: dict[str, Measure] = {}
    values: dict[str, Mapping[str, float]] = {}
    played: dict[str, Sequence[Transcript]] = {}
    curves: dict[str, Sequence[CurvePoint]] = {}
    # Modes share turns: a debate's first replies may also be another mode's.
    shared = SharedTurns() if shared is None else shared
    for mode_name, mode in setup.modes.items():
        runs: list[list[Sequence[Transcript]]] = [[] for _ in range(setup.runs)]
        for plays in mode.plays(setup.form):
            first, step = plays.share
            debates: list[DebateRun] = []
            for run in range(setup.runs):
                started = start_debates(setup.seed, plays, questions[first::step], name, run)
                debates += [shared.over(debate) for debate in started]
            label = plays.what if is_standard(mode_name) else f"{mode_name} {plays.what}"
            watched = watch(debates, plays.form.turn_count(), f"{name} {label}")
            # All runs are played together: an engine is faster with many requests at once.
            transcripts = [with_counts(each) for each in setup.rollout.play(watched, engine)]
            size = len(transcripts) // setup.runs
            for run, transcripts_of_plays in enumerate(runs):
                transcripts_of_plays.append(transcripts[run * size : (run + 1) * size])
        mode_transcripts: list[Transcript] = []
        for transcripts_of_plays in runs:
            for run_transcripts in transcripts_of_plays:
                mode_transcripts += run_transcripts
        played[mode_name] = mode_transcripts
        # A mode without plays cannot measure this form.
        if not runs[0]:
            continue
        for figure, measure, by_question in _measure_mode(mode, runs, mode.figures(setup.form)):
            measures[full_name(mode_name, figure)] = measure
            if by_question is not None:
                values[full_name(mode_name, figure)] = by_question
        for curve, points in mode.curves(_pool_runs(runs)).items():
            curves[full_name(mode_name, curve)] = points
    return Measures(found=measures, played=played, values=values, curves=curves)


def start_debates(
    seed: int, plays: Plays, questions: Sequence[Question], name: str, run: int
) -> list[DebateRun]:
    """Start the debates of a run, each seeded by question, run and copy."""
    # The first run has no mark, so that its seeds and ids are those of an evaluation of one run.
    run_mark = f"/run-{run + 1}" if run else ""

    def seed_of(question: Question, copy: int) -> int:
        return zlib.crc32(f"{seed}/{name}{run_mark}/{question.id}/{copy}".encode())

    debates = []
    # Agents that are shown another debate see the next question's; the last sees the first's.
    other_questions = [*questions[1:], *questions[:1]]
    for question, other in zip(questions, other_questions, strict=True):
        for copy in plays.copies:
            copy_mark = str(copy) if copy >= 0 else ""
            id_parts = [f"{question.id}{run_mark}", plays.mark, copy_mark]
            debates.append(
                plays.form.start(
                    question,
                    seed=seed_of(question, copy),
                    other=(other, seed_of(other, copy)),
                    debate_id="/".join(filter(None, id_parts)),
                    same_answer=partial(same_answer, question),
                )
            )
    return debates


def _measure_mode(
    mode: EvaluationMode, runs: Sequence[Sequence[Sequence[Transcript]]], figures: Mapping[str, str]
) -> Iterator[tuple[str, Measure, Mapping[str, float] | None]]:
    """Yield the mode's figures with their values by question, then the ratios of sums.

    Values outside the mode's figures are left out.
    """
    # Intervals are over all runs together; the single runs give only the deviation between them.
    samples = [*runs, _pool_runs(runs)] if len(runs) > 1 else runs
    values_of_samples = [mode.values(sample) for sample in samples]
    ratios_of_samples = [mode.ratios(sample) for sample in samples]
    pooled_values = {name: values for name, values in values_of_samples[-1].items() if values}
    intervals = {}
    # By number of questions: figures with equally many share their resamples.
    for name in sorted(pooled_values, key=lambda name: len(pooled_values[name])):
        question_values = list(pooled_values[name].values())
        intervals[name] = bootstrap_interval(question_values, within=range_of(name))
    for name in figures:
        if name not in intervals:
            continue
        by_question = pooled_values[name]
        mean, low, high = intervals[name]
        run_means = []
        for values in values_of_samples[: len(runs)]:
            if values.get(name):
                run_means.append(fmean(values[name].values()))
        measure = Measure(
            mean=mean,
            low=low,
            high=high,
            questions=len(by_question),
            run_deviation=_deviation(run_means),
        )
        yield name, measure, by_question
    # Ratios have no value for a question: numerators and denominators are summed first.
    for name in figures:
        sums_of_samples = []
        pooled_of_samples = []
        for ratios in ratios_of_samples:
            sums = [{name: question_sums} for question_sums in ratios.get(name, {}).values()]
            sums_of_samples.append(sums)
            pooled_of_samples.append(pooled(sums).values())
        if name not in pooled_of_samples[-1]:
            continue
        estimate = bootstrap_estimates(sums_of_samples[-1])[name]
        run_ratios = [each[name] for each in pooled_of_samples[: len(runs)] if name in each]
        measure = Measure(
            mean=estimate.value,
            low=estimate.low,
            high=estimate.high,
            questions=estimate.questions,
            run_deviation=_deviation(run_ratios),
        )
        yield name, measure, None


def _deviation(run_means: Sequence[float]) -> float | None:
    return stdev(run_means) if len(run_means) > 1 else None


def _pool_runs(runs: Sequence[Sequence[Sequence[Transcript]]]) -> list[list[Transcript]]:
    """Concatenate the transcripts of all runs, for each of a mode's plays."""
    pools = []
    for transcripts_of_runs in zip(*runs, strict=True):
        pool: list[Transcript] = []
        for transcripts in transcripts_of_runs:
            pool += transcripts
        pools.append(pool)
    return pools
