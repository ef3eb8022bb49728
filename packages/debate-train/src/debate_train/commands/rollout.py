"""`debate-rollout`: debates of a recipe, played and written without a trainer."""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.types import DebateRun, Transcript
from debate_rollout.drivers import play_each
from debate_rollout.engine import Engine, streaming
from debate_train.checkpoints.resumes import recipe_changes, refuse_other_data
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
from debate_train.playing import check_of, named_debates
from debate_train.recipe import Recipe
from debate_train.recipe.check import check_collecting
from debate_train.recipe.data_view import data_prints
from debate_train.recipe.refusals import refuse_absent_devices
from debate_train.running.open_engines import open_sampling

TRANSCRIPTS = "transcripts.jsonl"
# Keys that decide what is said.
_DECISIVE_KEYS = ("seed", "model", "data", "debate", "rollout")
# Keys that may change between two calls.
_FREE_KEYS = ("rollout.engine", "rollout.driver")
_REPORT_S = 2.0
"""Seconds between two reports of progress."""

_log = logging.getLogger(__name__)

NamedRun = tuple[str, DebateRun]


class Collection(ResumableFolder):
    """Debates in `transcripts.jsonl`, each once, of a single process; use it in `with`.

    Args:
        path: A new or empty folder, or the folder of an earlier call with the same recipe.
        resolved_yaml: The recipe as the folder has it.
        data: Hashes of the files of questions, by key.

    Raises:
        UsageError: The folder cannot be used, holds debates of another recipe or of other
            questions, or another process writes there.
    """

    def __init__(self, path: Path, resolved_yaml: str, data: Mapping[str, str]) -> None:
        super().__init__(path, TRANSCRIPTS, b"")
        self.file = path / TRANSCRIPTS
        try:
            if cut_torn_line(self.file):
                _log.warning("%s: cut off a last line that was not whole", self.file)
            self.ids = _read_ids(self.file)
            """Ids of the debates in the file."""
            recipe_path = path / RECIPE
            # Without any debate, another recipe may simply take the folder.
            if self.ids and recipe_path.is_file():
                _refuse_another_recipe(recipe_path, resolved_yaml)
                refuse_other_data(path, data, "another --output")
            self.write(RECIPE, resolved_yaml)
            self.record_environment(resumed=True, facts={"data": data})
            self._file = self.file.open("ab")
        except BaseException:
            # `with` has not begun, so nothing else would release the folder.
            self._lock.release()
            raise

    def append(self, transcript: Transcript) -> None:
        """Write a debate and flush it to the file."""
        self._file.write(json_line(to_json(transcript)))
        self._file.flush()
        self.ids.add(transcript.id)

    def close(self) -> None:
        """Close the file, and let other processes write here."""
        self._file.close()
        super().close()


def _refuse_another_recipe(path: Path, resolved_yaml: str) -> None:
    """Refuse a recipe for different debates than in the folder."""
    for key in recipe_changes(path.read_text(encoding="utf-8"), resolved_yaml):
        if key.startswith(_FREE_KEYS):
            _log.warning("%s is another than before", key)
        elif key.partition(".")[0] in _DECISIVE_KEYS:
            raise UsageError(
                f"{key}: found another than in {path}, by which the transcripts there were "
                "collected; expected the same, or another --output"
            )


def _read_ids(path: Path) -> set[str]:
    ids: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                ids.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"{path}:{number}: found no transcript; mend or remove the line, or choose "
                    "another --output"
                ) from None
    return ids


def collect(recipe: Recipe, resolved_yaml: str, output: Path) -> None:
    """Play the debates of `steps` × `data.batch_size` questions, without those in `output`.

    A debate's id and seed follow from step, question and copy, so an interruption at any point
    changes no debate.

    Args:
        recipe: Questions, debates, policies and engine; phases have no effect.
        resolved_yaml: The recipe as `output` has it.
        output: A new or empty folder, or the folder of an earlier call.

    Raises:
        UsageError: `output` cannot be used, or holds debates of another recipe.
        EngineFailure: The engine failed twice on a request; finished debates stay in `output`.
    """
    refuse_absent_devices(recipe)
    source = recipe.data.open(recipe.seed)
    steps = []
    for number in range(recipe.steps):
        questions = source.batch(number)
        name = f"rollout/{number}"
        steps.append(named_debates(recipe, questions, name, check_proposal=check_of(source)))
    num_debates = sum(map(len, steps))
    with (
        Collection(output, resolved_yaml, data_prints(recipe)) as collection,
        Progress() as progress,
    ):
        missing = []
        for step in steps:
            missing.append([named for named in step if named[0] not in collection.ids])
        num_missing = sum(map(len, missing))
        if num_missing < num_debates:
            num_present = num_debates - num_missing
            progress.note(f"{num_present} of {num_debates} debates are there already")
        if num_missing:
            engine = open_sampling(recipe, source)
            try:
                played = _play(recipe, engine, missing)
                _write_debates(played, collection, progress, num_debates)
            finally:
                num_present = len(collection.ids)
                if num_present < num_debates:
                    progress.note(
                        f"{num_present} of {num_debates} debates are kept; the same command goes on"
                    )
                engine.close()
        print(f"transcripts: {collection.file} ({len(collection.ids)} debates)")


def _play(
    recipe: Recipe, engine: Engine, steps: Sequence[Sequence[NamedRun]]
) -> Iterator[Transcript]:
    """Play step by step in lock-step, for early ends of some debates; else all at once."""
    rollout = recipe.rollout
    if streaming(engine) is not None and rollout.driver.lets_overtake:
        steps = [[named for step in steps for named in step]]
    for step in steps:
        for _, transcript in play_each(
            [run for _, run in step],
            engine,
            max_tokens=rollout.max_tokens,
            sampling=rollout.sampling,
            driver=rollout.driver,
        ):
            yield transcript


def _write_debates(
    played: Iterator[Transcript], collection: Collection, progress: Progress, num_debates: int
) -> None:
    progress.start("rollout", num_debates, "debates")
    start_s = time.monotonic()
    last_report_s = start_s
    num_tokens = 0
    for transcript in played:
        collection.append(transcript)
        num_tokens += sum((turn.token_counts or (0, 0))[1] for turn in transcript.sampled_turns())
        now_s = time.monotonic()
        num_written = len(collection.ids)
        if now_s - last_report_s >= _REPORT_S or num_written == num_debates:
            # Endpoints that count no tokens have no speed.
            speed = {"tokens_per_s": num_tokens / (now_s - start_s)} if num_tokens else {}
            progress.step(num_written, speed)
            last_report_s = now_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return command("debate-rollout", rollout_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    def act(checked: CheckedRecipe) -> int:
        if arguments.output is None:
            raise UsageError("--output: found none; expected a folder for the transcripts")
        say_loading()
        interruptible(lambda: collect(checked.recipe, checked.text, arguments.output))
        return DONE

    return run_recipe(arguments, check_collecting, act)
