"""The debates of each step: played when they are wanted, or ahead of training."""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from debate_protocol.types import DebateRun, Question, Transcript
from debate_rewards.answer_checking import same_answer
from debate_rollout.engine import Engine, Weights
from debate_train.evaluation.mode import direct_form
from debate_train.interrupts import RunFailure
from debate_train.playing.prefetch import PlayerAhead, read_lookahead, write_lookahead
from debate_train.recipe import Recipe


def start_debates(recipe: Recipe, questions: Sequence[Question], name: str) -> list[DebateRun]:
    """Return the debates of these questions, each with a seed from the recipe's and its name."""
    return [run for _, run in named_debates(recipe, questions, name)]


def named_debates(
    recipe: Recipe, questions: Sequence[Question], name: str, first: int = 0
) -> list[tuple[str, DebateRun]]:
    """Return the id and the debate of each copy of these questions, seeded by its id.

    Questions are numbered from `first`.
    """
    runs = []
    single, forms = direct_form(recipe.debate), [recipe.debate, *recipe.rollout.other_forms]
    copies = recipe.rollout.debates_per_question + recipe.rollout.direct_per_question
    for number, question in enumerate(questions, first):
        same = partial(same_answer, question)
        for copy in range(copies):
            identity = f"{name}/{number}/{copy}"
            seed = zlib.crc32(f"{recipe.seed}/{identity}".encode())
            form = (
                forms[number % len(forms)] if copy < recipe.rollout.debates_per_question else single
            )
            run = form.start(question, seed=seed, debate_id=identity, same_answer=same)
            runs.append((identity, run))
    return runs


Play = Callable[[int, Engine], Sequence[Transcript]]
"""Plays the debates of a step with an engine."""


class Rollouts:
    """Hands over the debates of steps in order.

    Step s is played with exactly the weights of version max(first, s - max_staleness), where
    `first` is the first step since the last border: results do not depend on how long anything
    takes. All methods are called from the thread that trains.

    Args:
        play: Plays the debates of a step.
        engine: Samples from the policy.
        weights: Returns the policy's present weights under a version; they may share memory with
            it.
        max_staleness: Most steps that are played ahead; 0 plays each when it is wanted.
        border: The first step after a given one that must not be played before all earlier ones
            are trained, such as the one after an exit criterion is looked at.
        demonstrator: Writes replies in the place of the engine, which is given no weights then.
    """

    def __init__(
        self,
        play: Play,
        engine: Engine,
        weights: Callable[[int], Weights],
        max_staleness: int = 0,
        border: Callable[[int], int] = lambda step: step + 1,
        demonstrator: Engine | None = None,
    ) -> None:
        self._play, self._engine, self._weights = play, engine, weights
        self._demonstrator = demonstrator
        self._max_staleness = max_staleness if demonstrator is None else 0
        self._border = border
        self._known: dict[int, Sequence[Transcript]] = {}
        self._ahead: PlayerAhead | None = None
        self._are_lost = False
        self.times: dict[str, float] = {}
        """Seconds that playing the last step took, and that training waited for it."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, steps may be taken; closing gives up what is under way."""
        try:
            yield
        except BaseException:  # For a checkpoint of the last complete step.
            if self._ahead is not None:
                self._are_lost = True
                self._known = self._ahead.with_old_weights()  # An interrupt may end the wait.
                self._are_lost = False
            raise
        finally:
            self._close()

    def take(self, step: int) -> Sequence[Transcript]:
        """Return the debates of a step; waits for them where they are played ahead.

        Raises:
            Exception: What playing this step ended with.
        """
        began = time.perf_counter()
        if self._max_staleness > 0 and self._ahead is None:
            self._play_ahead(range(step, self._border(step)))
        seconds = None
        if self._ahead is not None:
            transcripts, seconds = self._ahead.take(step)
        elif step in self._known:
            transcripts, seconds = self._known[step], 0.0
        else:
            player = self._engine if self._demonstrator is None else self._demonstrator
            transcripts = self._play(step, player)
        waited = time.perf_counter() - began
        played = waited if seconds is None else seconds
        self.times = {"time/rollout_s": played, "time/wait_s": waited}
        return transcripts

    def complete(self, step: int) -> None:
        """Drop the debates of a step whose update is made: no checkpoint needs them any more."""
        self._known = {other: found for other, found in self._known.items() if other > step}
        if self._ahead is not None:
            self._ahead.complete(step)

    def refresh(self, version: int) -> None:
        """Let later steps be played with the policy's present weights; those before are over."""
        self.complete(version - 1)
        if self._ahead is not None:
            if version < self._ahead.steps.stop:
                self._ahead.offer(version, self._weights)
            else:
                self._close()
        elif self._max_staleness == 0 and self._demonstrator is None:
            self._engine.load(self._weights(version))

    @contextmanager
    def serving(self, version: int) -> Iterator[Engine]:
        """Lend the engine with the policy's present weights; nothing is played meanwhile."""
        with nullcontext() if self._ahead is None else self._ahead.paused():
            if self._max_staleness > 0 or self._demonstrator is not None:
                self._engine.load(self._weights(version))
            yield self._engine

    def save(self, directory: Path) -> None:
        """Write the debates that were played ahead with weights that will be gone.

        Waits for those under way.

        Raises:
            RunFailure: Nobody waited for them: a run could not go on as this one would have.
        """
        if self._are_lost:
            raise RunFailure("the debates that were begun ahead, which it needs, were given up")
        found = self._known if self._ahead is None else self._ahead.with_old_weights()
        if found:
            write_lookahead(directory, found)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        self._known = read_lookahead(directory)

    def _play_ahead(self, steps: range) -> None:
        ahead = PlayerAhead(self._play, self._engine, steps, self._max_staleness)
        ahead.known(self._known)
        ahead.offer(steps.start, self._weights)
        self._ahead, self._known = ahead, {}
        ahead.start()

    def _close(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
