"""Collect transcripts: a recipe's debates, played and kept, without a trainer."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from debate_protocol.types import DebateRun, Transcript
from debate_rollout.drivers import play_each
from debate_rollout.engine import Engine, streaming
from debate_train.checks.check_engines import refuse_absent_devices
from debate_train.commands.collection import Collection
from debate_train.commands.progress import Progress
from debate_train.playing.starts import named_debates
from debate_train.recipe import Recipe
from debate_train.running.engine_opening import open_sampling

_REPORT_S = 2.0
"""Seconds between two reports of progress."""

Named = tuple[str, DebateRun]


def collect(recipe: Recipe, resolved_yaml: str, output: Path) -> None:
    """Play the debates of `steps` × `data.batch_size` questions that `output` does not hold yet.

    A debate's id and seed follow from its step, question and copy, so it does not matter where an
    earlier call was stopped.

    Args:
        recipe: What is debated, by whom, and with which engine; its phases are left out.
        resolved_yaml: The recipe as it is kept in `output`.
        output: A new or empty folder, or that of an earlier call.

    Raises:
        UsageError: `output` cannot be used, or holds debates of another recipe.
        EngineFailure: The engine failed twice on a request; debates that had ended are kept.
    """
    refuse_absent_devices(recipe)
    source = recipe.data.open(recipe.seed)
    steps = [
        named_debates(recipe, source.batch(step), f"rollout/{step}") for step in range(recipe.steps)
    ]
    total = sum(map(len, steps))
    with Collection(output, resolved_yaml) as collection, Progress() as progress:
        left = [[one for one in step if one[0] not in collection.ids] for step in steps]
        missing = sum(map(len, left))
        if missing < total:
            progress.note(f"{total - missing} of {total} debates are there already")
        if missing:
            engine = open_sampling(recipe, source)
            try:
                _keep(_played(recipe, engine, left), collection, progress, total)
            finally:
                if (kept := len(collection.ids)) < total:
                    progress.note(f"{kept} of {total} debates are kept; the same command goes on")
                engine.close()
        print(f"transcripts: {collection.path} ({len(collection.ids)} debates)")


def _played(
    recipe: Recipe, engine: Engine, steps: Sequence[Sequence[Named]]
) -> Iterator[Transcript]:
    """Play step by step in lock-step, so that some debates end soon; else all at once."""
    rollout = recipe.rollout
    if streaming(engine) is not None and rollout.driver.lets_overtake:
        steps = [[one for step in steps for one in step]]
    for step in steps:
        for _, transcript in play_each(
            [run for _, run in step],
            engine,
            max_tokens=rollout.max_tokens,
            sampling=rollout.sampling,
            driver=rollout.driver,
        ):
            yield transcript


def _keep(
    played: Iterator[Transcript], collection: Collection, progress: Progress, total: int
) -> None:
    progress.start("rollout", total, "debates")
    began = last = time.monotonic()
    tokens = 0
    for transcript in played:
        collection.append(transcript)
        tokens += sum((turn.token_counts or (0, 0))[1] for turn in transcript.sampled_turns())
        now, done = time.monotonic(), len(collection.ids)
        if now - last >= _REPORT_S or done == total:
            speed = {"tokens_per_s": tokens / (now - began)} if tokens else {}
            progress.step(done, speed)
            last = now
