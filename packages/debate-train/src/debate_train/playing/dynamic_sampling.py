"""Over-sampling: questions that teach nothing are left out and others drawn in their place.

Step s owns the batches s·k to s·k + k - 1 of the data, where k is `rollout.oversample`. It draws
their questions in order, in rounds, until enough are kept: first as many as are wanted, then as
many as are missing at the share that was kept so far. What a step draws follows from its number
and from its weights, and so neither from time nor from what other steps drew: a resumed run and
one that plays ahead draw the same questions. Those that a step does not need are passed over; they
stand elsewhere in the next epoch.

A rule that counts debates (`at_most`) counts those of the step. Until its questions are drawn, the
debates that may go on wait at their first gate; then the rule answers all of them together.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from debate_protocol.types import DebateRun, Gate, GateDecision, Question, Transcript
from debate_rewards.decisions import Answers, GateRule, checked, divided
from debate_rollout.engine import Engine
from debate_train.data import DataSource
from debate_train.playing.rollout_settings import StepDebates
from debate_train.playing.rollouts import named_debates
from debate_train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Held:
    """A debate at its first gate."""

    run: DebateRun
    gate: Gate


def held(run: DebateRun, name: str, waiting: dict[str, Held]) -> DebateRun:
    """Return a debate to be played in the place of this one: it ends at its first gate.

    Where it may go on, it is put into `waiting` under its name, and what was played so far is its
    transcript.
    """
    is_held = False
    try:
        waits = next(run)
        while True:
            sent = yield waits
            if isinstance(waits, Gate) and sent == "go_on":
                waiting[name], is_held = Held(run, waits), True
                return waits.transcript
            waits = run.send(sent)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        if not is_held:
            run.close()


def go_on(one: Held) -> DebateRun:
    """Return the rest of a debate, which begins with the gate at which it waits."""
    waits, run = one.gate, one.run
    try:
        while True:
            waits = run.send((yield waits))  # type: ignore[assignment]
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()


_log = logging.getLogger(__name__)

PREFIX = "sampling/"
"""Begins the names of the metrics."""
Watched = Callable[[list[DebateRun]], list[DebateRun]]


def play_step(
    recipe: Recipe, source: DataSource, step: int, engine: Engine, watched: Watched = list
) -> StepDebates:
    """Play the debates of a training step.

    Args:
        recipe: The phase's.
        source: Of its questions.
        step: Number of the step over the whole run.
        engine: Samples the replies.
        watched: Returns the debates to be played in the place of those that are started.

    Returns:
        The debates of at most `data.batch_size` questions, in the order in which these were drawn;
        of fewer, and perhaps of none, where `oversample` batches hold no more to keep.

    Source: dynamic sampling of DAPO (Yu et al. 2025), section 3.2. There the number of batches has
    no bound and the data are read on from where the last step stopped.
    """
    rollout = recipe.rollout
    if rollout.select is None:
        runs = [run for _, run in named_debates(recipe, source.batch(step), f"train/{step}")]
        return StepDebates(rollout.play(watched(runs), engine))
    most = rollout.oversample
    drawing = _Drawing(
        recipe, f"train/{step}", map(source.batch, range(step * most, (step + 1) * most))
    )
    while questions := drawing.next_round():
        drawing.play(questions, engine, watched)
    return drawing.taken(engine, watched)


class _Drawing:
    """What one step drew so far."""

    def __init__(self, recipe: Recipe, name: str, batches: Iterator[Sequence[Question]]) -> None:
        self._recipe, self._name, self._unread = recipe, name, batches
        alone, counting = divided(recipe.rollout.select) if recipe.rollout.select else (None, None)
        waits = recipe.rollout.oversample > 1 and counting is not None
        self._rule = alone if waits else recipe.rollout.select
        self._counting = counting if waits else None
        self._held: dict[str, Held] = {}
        self._seen: set[str] = set()
        self._waiting: list[Question] = []
        self._drawn = self._batches = self._rounds = self._dropped_tokens = 0
        self._causes: Counter[str] = Counter()
        self._verdicts: dict[str, set[bool | None]] = {}
        self.kept: list[list[Transcript]] = []
        """The debates of each question that is kept, in the order of drawing."""

    def next_round(self) -> list[Question]:
        """Return the questions to be played next, each once a step; none where the step is full."""
        wanted = self._recipe.data.batch_size
        size, kept = wanted - len(self.kept), len(self.kept)
        if size <= 0:
            return []
        if kept:
            size = min(wanted, -(-size * self._drawn // kept))
        while len(self._waiting) < size and (batch := next(self._unread, None)) is not None:
            self._batches += 1
            for question in batch:
                if question.id in self._seen:
                    self._causes["repeated"] += 1
                else:
                    self._seen.add(question.id)
                    self._waiting.append(question)
        drawn, self._waiting = self._waiting[:size], self._waiting[size:]
        return drawn

    def play(self, fresh: Sequence[Question], engine: Engine, watched: Watched) -> None:
        """Play these questions and keep what the rule keeps."""
        rollout = self._recipe.rollout
        named = named_debates(self._recipe, fresh, self._name, first=self._drawn)
        self._drawn += len(fresh)
        self._rounds += 1
        runs = [run for _, run in named]
        if self._counting is not None:
            runs = [held(run, identity, self._held) for identity, run in named]
        assert self._rule is not None
        played = rollout.play(watched(runs), engine, partial(self._select, self._rule))
        # Single replies beside the debates pass no gate: they stay and go with their question.
        debates = rollout.debates_per_question
        copies = debates + rollout.direct_per_question
        places = {identity: place for place, (identity, _) in enumerate(named)}
        found: list[list[Transcript]] = [[] for _ in fresh]
        is_kept = [False] * len(fresh)
        for transcript in played:
            number, copy = divmod(places[transcript.id], copies)
            found[number].append(transcript)
            is_kept[number] |= copy < debates
        for question, own, keeps in zip(fresh, found, is_kept, strict=True):
            if keeps:
                self.kept.append(own)
            else:
                self._causes[self._cause(question)] += 1
                self._dropped_tokens += sum(map(_sampled_tokens, own))

    def _go_on(
        self, taken: list[list[Transcript]], engine: Engine, watched: Watched
    ) -> list[list[Transcript]]:
        """Return the debates with those that waited and may go on played to their ends."""
        waiting = {x.id: self._held.pop(x.id) for own in taken for x in own if x.id in self._held}
        for left in self._held.values():
            left.run.close()
        if not waiting:
            return taken
        self._rounds += 1

        def select(gates: Sequence[Gate]) -> Sequence[GateDecision]:
            is_first = all(gate is waiting[gate.transcript.id].gate for gate in gates)
            rule = self._counting if is_first else self._recipe.rollout.select
            assert rule is not None
            return self._select(rule, gates)

        runs = watched([go_on(one) for one in waiting.values()])
        played = {x.id: x for x in self._recipe.rollout.play(runs, engine, select)}
        return [
            [played.get(x.id, x) for x in own if x.id in played or x.id not in waiting]
            for own in taken
        ]

    def _select(self, rule: GateRule, gates: Sequence[Gate]) -> Sequence[GateDecision]:
        name = f"{self._recipe.seed}/select/{self._name}/{self._rounds}"
        seed = zlib.crc32(name.encode())
        decisions = rule(gates, seed=seed, correct=partial(_noted, self._verdicts))
        for gate, decision in zip(gates, decisions, strict=True):
            if decision == "drop":
                self._dropped_tokens += _sampled_tokens(gate.transcript)
        return decisions

    def _cause(self, question: Question) -> str:
        found = self._verdicts.get(question.id, set())
        if None in found:
            return "no_answer"
        if len(found) != 1:
            return "other"
        return "all_right" if True in found else "all_wrong"

    def taken(self, engine: Engine, watched: Watched) -> StepDebates:
        """Return the debates of the first questions that were kept, and what the others cost."""
        wanted, rounds = self._recipe.data.batch_size, self._rounds
        taken, surplus = self.kept[:wanted], self.kept[wanted:]
        taken = self._go_on(taken, engine, watched)
        self._dropped_tokens += sum(_sampled_tokens(x) for own in surplus for x in own)
        self._causes["surplus"] = len(surplus)
        causes = {name: float(self._causes[name]) for name in CAUSES}
        if len(taken) < wanted:
            said = ", ".join(f"{n:.0f} {c.replace('_', ' ')}" for c, n in causes.items() if n)
            _log.warning(
                "%s: kept %d of %d wanted questions out of %d drawn (%s)",
                self._name, len(taken), wanted, self._drawn, said or "the data hold no more",
            )  # fmt: skip
        counts = {
            "rounds": float(rounds),
            "batches": float(self._batches),
            "drawn": float(self._drawn),
            "kept": float(len(taken)),
            "missing": float(wanted - len(taken)),
            **causes,
            "dropped_tokens": float(self._dropped_tokens),
        }
        metrics = {PREFIX + name: value for name, value in counts.items()}
        return StepDebates([x for own in taken for x in own], metrics)


CAUSES = ("all_right", "all_wrong", "no_answer", "other", "surplus", "repeated")
"""Why questions are left out; repeated ones are not played a second time."""


def _noted(verdicts: dict[str, set[bool | None]], answers: Answers) -> Sequence[bool | None]:
    """Judge answers, and keep what was found for each question."""
    found = checked(answers)
    for (question, _), verdict in zip(answers, found, strict=True):
        verdicts.setdefault(question.id, set()).add(verdict)
    return found


def _sampled_tokens(transcript: Transcript) -> int:
    counts = (turn.token_counts for turn in transcript.sampled_turns())
    return sum(found[1] for found in counts if found is not None)
