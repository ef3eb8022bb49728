"""`debate-rollout`: a recipe's debates, played and kept without a trainer."""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.types import DebateRun, Transcript
from debate_rollout.drivers import play_each
from debate_rollout.engine import Engine, streaming
from debate_train.checkpoints.resumes import recipe_changes
from debate_train.checkpoints.whole_files import cut_torn_line
from debate_train.commands.evaluation_files import RECIPE, ResumableFolder
from debate_train.commands.options import rollout_parser
from debate_train.commands.recipe_command import (
    DONE,
    CheckedRecipe,
    command,
    run_recipe,
    say_loading,
)
from debate_train.errors import UsageError
from debate_train.interrupts import interruptible
from debate_train.monitoring.progress import Progress
from debate_train.playing import named_debates
from debate_train.recipe import Recipe
from debate_train.recipe.check import check_collecting
from debate_train.recipe.refusals import refuse_absent_devices
from debate_train.running.open_engines import open_sampling

TRANSCRIPTS = "transcripts.jsonl"
_DECIDES = ("seed", "model", "data", "debate", "rollout")
"""Keys that decide what is said."""
_FREE = ("rollout.engine", "rollout.driver")
"""Keys that may change between two calls."""

_log = logging.getLogger(__name__)


class Collection(ResumableFolder):
    """Debates in `transcripts.jsonl`, each once and of one process at a time; use it in `with`.

    Args:
        path: A new or empty folder, or that of an earlier call with the same recipe.
        resolved_yaml: The recipe as it is kept there.

    Raises:
        UsageError: The folder cannot be used, holds debates of another recipe, or another process
            writes there.
    """

    def __init__(self, path: Path, resolved_yaml: str) -> None:
        super().__init__(path, TRANSCRIPTS, b"")
        self.file = path / TRANSCRIPTS
        try:
            if cut_torn_line(self.file):
                _log.warning("%s: cut off a last line that was not whole", self.file)
            self.ids = _ids(self.file)
            """Debates that are there."""
            kept = path / RECIPE
            if self.ids and kept.is_file():
                _refuse_another(kept, resolved_yaml)
            self.write(RECIPE, resolved_yaml)
            self.keep_environment(resumed=True)
            self._file = self.file.open("ab")
        except BaseException:
            self._lock.release()
            raise

    def append(self, transcript: Transcript) -> None:
        """Write one debate; it is there once this returns."""
        self._file.write(json_line(to_json(transcript)))
        self._file.flush()
        self.ids.add(transcript.id)

    def close(self) -> None:
        """Close the file, and let other processes write here."""
        self._file.close()
        super().close()


def _refuse_another(kept: Path, resolved_yaml: str) -> None:
    """Refuse to go on with a recipe by which the debates would be others."""
    for key in recipe_changes(kept.read_text(encoding="utf-8"), resolved_yaml):
        if key.startswith(_FREE):
            _log.warning("%s is another than before", key)
        elif key.partition(".")[0] in _DECIDES:
            raise UsageError(
                f"{key}: found another than in {kept}, by which the transcripts there were "
                "collected; expected the same, or another --output"
            )


def _ids(path: Path) -> set[str]:
    found: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"{path}:{number}: found no transcript; mend or remove the line, or choose "
                    "another --output"
                ) from None
    return found


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
        print(f"transcripts: {collection.file} ({len(collection.ids)} debates)")


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command("debate-rollout", rollout_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    def act(checked: CheckedRecipe) -> int:
        if arguments.output is None:
            raise UsageError("--output: found none; expected a folder for the transcripts")
        say_loading()
        interruptible(lambda: collect(checked.recipe, checked.text, arguments.output))
        return DONE

    return run_recipe(arguments, check_collecting, act)
