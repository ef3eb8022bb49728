"""Which debates a step plays and how: the keys `rollout` and `pipeline`, and over-sampling.

Over-sampling: questions that teach nothing are left out and others drawn in their place. Step s
owns the batches s·k to s·k + k - 1 of the data, where k is `rollout.oversample`. It draws their
questions in order, in rounds, until enough are kept: first as many as are wanted, then as many as
are missing at the share that was kept so far. What a step draws follows from its number and from
its weights, and so neither from time nor from what other steps drew: a resumed run and one that
plays ahead draw the same questions. Those that a step does not need are passed over; they stand
elsewhere in the next epoch.

A rule that counts debates (`at_most`) counts those of the step. Until its questions are drawn, the
debates that may go on wait at their first gate; then the rule answers all of them together.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Protocol

from pydantic import Field

from debate_protocol.forms import DebateForm, Direct, FormConfig
from debate_protocol.plugins import Config
from debate_protocol.types import DebateRun, Gate, GateDecision, Question, Transcript
from debate_rewards.answer_checking import same_answer
from debate_rewards.decisions import Answers, GateRule, checked, divided
from debate_rollout.drivers import AUTO, DriverChoice, Select, play
from debate_rollout.engine import Engine, EngineSettings
from debate_rollout.engines import TransformersEngine
from debate_train.data import DataSettings, DataSource
from debate_train.data.demonstrations import ENGINES
from debate_train.models.loaded_model import answering_role
from debate_train.models.policies import PolicyChoice
from debate_train.playing.shared_turns import SharedTurns


class Pipeline(Config):
    """Rollouts for later steps while this one trains."""

    max_staleness: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many steps old; 0 is on-policy."""


class Rollout(Config):
    """How debates are sampled."""

    engine: Annotated[EngineSettings, ENGINES] = TransformersEngine()
    """Where and how replies are sampled."""
    policies: dict[str, PolicyChoice] = Field(default_factory=dict)
    """Policies that stay as they are, by the names that roles of the debate give them."""
    driver: DriverChoice = AUTO
    """Which debates wait for which, and how long for a reply."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of one reply."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Tokens are drawn from the smallest set of at least this probability; 1 cuts nothing."""
    top_k: int = Field(0, ge=0)
    """Tokens are drawn from this many of the likeliest; 0 cuts nothing."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Tokens less likely than this share of the likeliest are not drawn; 0 cuts nothing."""
    debates_per_question: int = Field(1, ge=1)
    """Independent debates of each question; the group of GRPO when the form is `direct`."""
    direct_per_question: int = Field(0, ge=0)
    """Single-turn replies to each question beside its debates, prompted as a debate begins."""
    other_forms: tuple[FormConfig, ...] = ()
    """Further forms that the questions of a step are debated in, in turn: question n of a step in
    form n mod (1 + their number), of which `debate` is the first."""
    select: GateRule | None = None
    """Answers the gates of the debates: which go on, end, or are left out; all go on without."""
    oversample: int = Field(1, ge=1)
    """Most batches of questions that a step draws from until `data.batch_size` are kept."""

    @property
    def sampling(self) -> dict[str, float | int]:
        """Sampling settings that cut the distribution; neutral in RL."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def select_problem(self, gates: Sequence[int], turns: int) -> str | None:
        """Return what is wrong with `select` and `oversample`, if anything.

        Args:
            gates: Rounds of the form after which it yields a gate.
            turns: Of a debate.
        """
        rule = self.select
        if rule is None and self.oversample > 1:
            return (
                f"oversample: found {self.oversample} without select, so nothing is left out and "
                "nothing drawn in its place; expected select: {type: informative}"
            )
        if rule is None:
            return None
        if not gates:
            return (
                f"select: found {rule.type}, but the debate has no gate for it to answer; expected "
                "debate.gate_after, such as [0]"
            )
        alone, counting = divided(rule)
        if self.oversample > 1 and counting is not None and (alone is None or counting.drops):
            return (
                f"oversample: found {self.oversample} with a rule at_most that comes first or "
                "drops, but it counts the debates of a step once its questions are drawn; expected "
                "select: {type: in_order, rules: [{type: informative}, {type: at_most, go_on: …}]}"
            )
        if turns == 1 and rule.compares_turns:
            return (
                "select: found informative within each debate, which here is a single reply and "
                "never both right and wrong; expected group: question"
            )
        return None

    def play(
        self, runs: Sequence[DebateRun], engine: Engine, select: Select | None = None
    ) -> list[Transcript]:
        """Run debates to their ends as these settings say; `select` answers their gates."""
        return play(
            runs,
            engine,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            select=select,
            driver=self.driver,
        )


def direct_form(form: DebateForm) -> Direct:
    """Return the form in which one agent answers once, prompted as in this form."""
    return Direct.model_validate({**dict(form.speaking()), "roles": answering_role(form)})


class StepRecipe(Protocol):
    """The parts of a recipe that say which debates a step plays."""

    @property
    def debate(self) -> DebateForm:
        """The form of the debates."""

    @property
    def rollout(self) -> Rollout:
        """How they are sampled."""

    @property
    def data(self) -> DataSettings:
        """Where questions come from."""

    @property
    def seed(self) -> int:
        """Seeds all of it."""


class StepDebates(list[Transcript]):
    """The debates that a step trains on; `metrics` say how many were left out, and why."""

    def __init__(
        self, transcripts: Sequence[Transcript], metrics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(transcripts)
        self.metrics: dict[str, float] = dict(metrics or {})


def metrics_of(debates: Sequence[Transcript]) -> dict[str, float]:
    """Return the metrics that came with debates, none where nothing was selected."""
    return debates.metrics if isinstance(debates, StepDebates) else {}


Watch = Callable[[Sequence[DebateRun], int, str], list[DebateRun]]
"""Returns the same debates to be played in their place; each has at most so many turns, and the
text says what is played."""


def unwatched(runs: Sequence[DebateRun], turns: int, what: str) -> list[DebateRun]:
    """Return the debates as they are."""
    return list(runs)


def counted(
    runs: Sequence[DebateRun], turns: int, changed: Callable[[int, int], None]
) -> list[DebateRun]:
    """Return the debates; while they are played, `changed` hears (turns played, turns known).

    Args:
        runs: Not started; they are played in one thread.
        turns: Most of one debate; those that one which ends early leaves out count as played.
        changed: Is called when the number of played turns grows.
    """
    total, played = len(runs) * turns, 0

    def add(more: int) -> None:
        nonlocal played
        if more:
            played += more
            changed(played, total)

    return [_counted(run, turns, add) for run in runs]


def _counted(run: DebateRun, left: int, add: Callable[[int], None]) -> DebateRun:
    try:
        waits = next(run)
        while True:
            sent = yield waits
            if not isinstance(waits, Gate):
                found = min(left, len(waits))
                left -= found
                add(found)
            waits = run.send(sent)
    except StopIteration as stop:
        add(left)
        return stop.value  # type: ignore[no-any-return]
    finally:
        run.close()


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
    recipe: StepRecipe, source: DataSource, step: int, engine: Engine, watched: Watched = list
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

    def __init__(
        self, recipe: StepRecipe, name: str, batches: Iterator[Sequence[Question]]
    ) -> None:
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


def start_debates(recipe: StepRecipe, questions: Sequence[Question], name: str) -> list[DebateRun]:
    """Return the debates of these questions, each with a seed from the recipe's and its name."""
    return [run for _, run in named_debates(recipe, questions, name)]


def named_debates(
    recipe: StepRecipe, questions: Sequence[Question], name: str, first: int = 0
) -> list[tuple[str, DebateRun]]:
    """Return the id and the debate of each copy of these questions, seeded by its id.

    Questions are numbered from `first`.
    """
    runs, forms = [], [recipe.debate, *recipe.rollout.other_forms]
    shared = next((SharedTurns() for form in forms if form.shares_turns), None)
    debates, singles = recipe.rollout.debates_per_question, recipe.rollout.direct_per_question
    single = direct_form(recipe.debate) if singles else recipe.debate
    for number, question in enumerate(questions, first):
        same = partial(same_answer, question)
        for copy in range(debates + singles):
            identity = f"{name}/{number}/{copy}"
            seed = zlib.crc32(f"{recipe.seed}/{identity}".encode())
            form = forms[number % len(forms)] if copy < debates else single
            of_all = zlib.crc32(f"{recipe.seed}/{name}/{number}".encode())
            run = form.start(
                question, seed=seed, debate_id=identity, same_answer=same, shared_seed=of_all
            )
            runs.append((identity, shared.over(run) if shared and form.shares_turns else run))
    return runs
