"""The debates of a training step, and dynamic sampling of informative questions.

Over-sampling replaces uninformative questions by others. Step s owns the batches s·k to
s·k + k - 1 of the data, where k is `rollout.oversample`. A step draws the batches' questions in
order, in rounds, until enough are kept: first the wanted number, then the missing number divided by
the share kept so far. The draw depends only on the number of the step and on the weights, not on
time or on other steps: a resumed run and a run ahead of training draw the same questions. Unneeded
questions are passed over; the next epoch has them elsewhere.

A rule that counts debates (`at_most`) counts those of the step. Until its questions are drawn, the
debates that may go on wait at their first gate; then the rule answers all of them together.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from debate_protocol.types import DebateRun, Gate, GateDecision, Question, Transcript
from debate_rewards.decisions import Answers, GateRule, checked, divided
from debate_rollout.engine import Engine
from debate_train.data import DataSource
from debate_train.playing.seeded_debates import (
    StepRecipe,
    check_of,
    named_debates,
    start_debates,
)
from debate_train.playing.waiting_debates import WaitingDebate, go_on, stop_at_gate

METRIC_PREFIX = "sampling/"
CAUSES = ("all_right", "all_wrong", "no_answer", "other", "surplus", "repeated")
"""Causes of leaving a question out; repeated questions are not played a second time."""

Wrap = Callable[[list[DebateRun]], list[DebateRun]]
"""Wraps started debates, for example to count their turns."""

_log = logging.getLogger(__name__)


class StepDebates(list[Transcript]):
    """The debates that a step trains on, with metrics of the questions left out."""

    def __init__(
        self, transcripts: Sequence[Transcript], metrics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(transcripts)
        self.metrics: dict[str, float] = dict(metrics or {})


def metrics_of(debates: Sequence[Transcript]) -> dict[str, float]:
    """Get the sampling metrics of debates, empty where nothing was selected."""
    return debates.metrics if isinstance(debates, StepDebates) else {}


def play_step(
    recipe: StepRecipe, source: DataSource, step: int, engine: Engine, wrap: Wrap = list
) -> StepDebates:
    """Play the debates of a training step.

    Args:
        recipe: the phase's recipe.
        source: source of its questions.
        step: number of the step over the whole run.
        engine: samples the replies.
        wrap: wraps the started debates.

    Returns:
        The debates of at most `data.batch_size` questions, in the order of drawing; of fewer, and
        perhaps of no question, where `oversample` batches hold no more to keep.

    Source: dynamic sampling of DAPO (Yu et al. 2025), section 3.2. There the number of batches has
    no bound and the data are read on from where the last step stopped.
    """
    rollout = recipe.rollout
    name = f"train/{step}"
    if rollout.select is None:
        runs = start_debates(recipe, source.batch(step), name, check_of(source))
        return StepDebates(rollout.play(wrap(runs), engine))
    batch_numbers = range(step * rollout.oversample, (step + 1) * rollout.oversample)
    sampling = _DynamicSampling(recipe, rollout.select, name, map(source.batch, batch_numbers))
    while questions := sampling.next_round():
        sampling.play(questions, engine, wrap)
    return sampling.finish(engine, wrap)


class _DynamicSampling:
    """Questions and debates that one step has drawn so far."""

    def __init__(
        self,
        recipe: StepRecipe,
        select: GateRule,
        name: str,
        batches: Iterator[Sequence[Question]],
    ) -> None:
        self._recipe = recipe
        self._select = select
        self._name = name
        self._batches = batches

        # While questions are drawn, `_drawing_rule` answers gates; `_counting_rule` answers all
        # waiting debates together afterwards. Without further rounds one rule does both.
        self._drawing_rule: GateRule = select
        self._counting_rule: GateRule | None = None
        debate_rule, counting_rule = divided(select)
        if recipe.rollout.oversample > 1 and counting_rule is not None:
            assert debate_rule is not None  # As `Rollout.select_problem` refuses other rules.
            self._drawing_rule = debate_rule
            self._counting_rule = counting_rule

        self._unplayed: list[Question] = []
        self._drawn_ids: set[str] = set()
        self._waiting: dict[str, WaitingDebate] = {}
        self._kept: list[list[Transcript]] = []
        """The debates of each question to train on, in the order of drawing."""
        self._verdicts: dict[str, set[bool | None]] = {}
        self._causes: Counter[str] = Counter()
        self._num_drawn = 0
        self._num_batches = 0
        self._num_rounds = 0
        self._num_dropped_tokens = 0

    def next_round(self) -> list[Question]:
        """Draw the questions to play next, each once a step; none when the step is full."""
        batch_size = self._recipe.data.batch_size
        num_kept = len(self._kept)
        num_missing = batch_size - num_kept
        if num_missing <= 0:
            return []
        num_wanted = num_missing
        if num_kept:
            # Rounded up, in whole numbers: floats could draw another question elsewhere.
            expected_draws = -(-num_missing * self._num_drawn // num_kept)
            num_wanted = min(batch_size, expected_draws)
        while len(self._unplayed) < num_wanted:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._num_batches += 1
            for question in batch:
                if question.id in self._drawn_ids:
                    self._causes["repeated"] += 1
                else:
                    self._drawn_ids.add(question.id)
                    self._unplayed.append(question)
        questions = self._unplayed[:num_wanted]
        del self._unplayed[:num_wanted]
        return questions

    def play(self, questions: Sequence[Question], engine: Engine, wrap: Wrap) -> None:
        """Play drawn questions, and keep those with a debate that the rule does not drop."""
        rollout = self._recipe.rollout
        named_runs = named_debates(self._recipe, questions, self._name, first=self._num_drawn)
        self._num_drawn += len(questions)
        self._num_rounds += 1
        runs = [run for _, run in named_runs]
        if self._counting_rule is not None:
            runs = [stop_at_gate(run, debate_id, self._waiting) for debate_id, run in named_runs]
        transcripts = rollout.play(wrap(runs), engine, partial(self._decide, self._drawing_rule))

        num_debates = rollout.debates_per_question
        num_copies = num_debates + rollout.direct_per_question
        positions = {debate_id: position for position, (debate_id, _) in enumerate(named_runs)}
        transcripts_of: list[list[Transcript]] = [[] for _ in questions]
        is_kept = [False] * len(questions)
        for transcript in transcripts:
            index, copy = divmod(positions[transcript.id], num_copies)
            transcripts_of[index].append(transcript)
            # Single replies beside the debates pass no gate: they stay and go with their question.
            if copy < num_debates:
                is_kept[index] = True
        for index, question in enumerate(questions):
            if is_kept[index]:
                self._kept.append(transcripts_of[index])
            else:
                self._causes[self._cause(question)] += 1
                self._num_dropped_tokens += _count_tokens(transcripts_of[index])

    def finish(self, engine: Engine, wrap: Wrap) -> StepDebates:
        """Play waiting debates to their ends, and report the cost of the questions left out."""
        batch_size = self._recipe.data.batch_size
        num_rounds = self._num_rounds  # Without the round in which waiting debates go on.
        taken = self._kept[:batch_size]
        surplus = self._kept[batch_size:]
        taken = self._continue_waiting(taken, engine, wrap)
        self._num_dropped_tokens += sum(map(_count_tokens, surplus))
        self._causes["surplus"] = len(surplus)
        causes = {cause: float(self._causes[cause]) for cause in CAUSES}
        if len(taken) < batch_size:
            named_causes = [
                f"{count:.0f} {cause.replace('_', ' ')}" for cause, count in causes.items() if count
            ]
            _log.warning(
                "%s: kept %d of %d wanted questions out of %d drawn (%s)",
                self._name,
                len(taken),
                batch_size,
                self._num_drawn,
                ", ".join(named_causes) or "the data hold no more",
            )
        counts = {
            "rounds": float(num_rounds),
            "batches": float(self._num_batches),
            "drawn": float(self._num_drawn),
            "kept": float(len(taken)),
            "missing": float(batch_size - len(taken)),
            **causes,
            "dropped_tokens": float(self._num_dropped_tokens),
        }
        metrics = {METRIC_PREFIX + name: count for name, count in counts.items()}
        debates = [transcript for transcripts in taken for transcript in transcripts]
        return StepDebates(debates, metrics)

    def _continue_waiting(
        self, taken: list[list[Transcript]], engine: Engine, wrap: Wrap
    ) -> list[list[Transcript]]:
        """Play the waiting debates of taken questions to their ends; close all others."""
        waiting: dict[str, WaitingDebate] = {}
        for transcripts in taken:
            for transcript in transcripts:
                if transcript.id in self._waiting:
                    waiting[transcript.id] = self._waiting.pop(transcript.id)
        for debate in self._waiting.values():
            debate.run.close()
        if not waiting:
            return taken
        self._num_rounds += 1

        def decide(gates: Sequence[Gate]) -> Sequence[GateDecision]:
            # The drawing rule has answered the first gates already. Later ones get both rules.
            are_first = all(gate is waiting[gate.transcript.id].gate for gate in gates)
            rule = self._select
            if are_first:
                assert self._counting_rule is not None
                rule = self._counting_rule
            return self._decide(rule, gates)

        runs = wrap([go_on(debate) for debate in waiting.values()])
        transcripts_by_id = {}
        for transcript in self._recipe.rollout.play(runs, engine, decide):
            transcripts_by_id[transcript.id] = transcript
        results = []
        for transcripts in taken:
            # A debate dropped at a later gate has no transcript any more.
            results.append(
                [
                    transcripts_by_id.get(transcript.id, transcript)
                    for transcript in transcripts
                    if transcript.id in transcripts_by_id or transcript.id not in waiting
                ]
            )
        return results

    def _decide(self, rule: GateRule, gates: Sequence[Gate]) -> Sequence[GateDecision]:
        seed_name = f"{self._recipe.seed}/select/{self._name}/{self._num_rounds}"
        decisions = rule(gates, seed=zlib.crc32(seed_name.encode()), correct=self._check_answers)
        for gate, decision in zip(gates, decisions, strict=True):
            if decision == "drop":
                self._num_dropped_tokens += _count_tokens([gate.transcript])
        return decisions

    def _check_answers(self, answers: Answers) -> Sequence[bool | None]:
        """Check answers, and remember each question's verdicts as the cause of leaving it out."""
        verdicts = checked(answers)
        for (question, _), verdict in zip(answers, verdicts, strict=True):
            self._verdicts.setdefault(question.id, set()).add(verdict)
        return verdicts

    def _cause(self, question: Question) -> str:
        verdicts = self._verdicts.get(question.id, set())
        if None in verdicts:
            return "no_answer"
        if len(verdicts) != 1:
            return "other"
        return "all_right" if True in verdicts else "all_wrong"


def _count_tokens(transcripts: Sequence[Transcript]) -> int:
    num_sampled = 0
    for transcript in transcripts:
        for turn in transcript.sampled_turns():
            if turn.token_counts is not None:
                num_sampled += turn.token_counts[1]
    return num_sampled
