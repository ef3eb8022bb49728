"""Whether a checkpoint fits the files beside it and the model; its manifest vouches for more."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from debate_train.checkpointing.checkpoints import RefusedCheckpoint, RunState
from debate_train.checkpointing.run_directory import RunDirectory
from debate_train.checkpointing.trainer_state import check_contents
from debate_train.interrupts import UsageError
from debate_train.models.loaded_model import LoadedModel
from debate_train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """Refuses checkpoints that the rest of the run directory, or this recipe, does not fit."""

    recipe: Recipe
    directory: RunDirectory
    loaded: LoadedModel

    def __call__(self, path: Path, state: RunState) -> None:
        """Check one checkpoint whose files are as its manifest says.

        Raises:
            RefusedCheckpoint: It does not fit; the message says what.
        """
        for problem in (*self._row_problems(state), *self._record_problems(state)):
            raise RefusedCheckpoint(problem)
        phases = list(self.recipe.phase_recipes().values())
        phase = phases[state.phase] if state.phase < len(phases) else None
        try:
            check_contents(path, state, phase, self.loaded)
        except UsageError as error:
            text = str(error).removeprefix(f"checkpoint {path}: ").splitlines()[0]
            raise RefusedCheckpoint(text) from error

    def _row_problems(self, state: RunState) -> Iterator[str]:
        """Compare the rows of metrics that the checkpoint counts with those in the file."""
        in_file = state.rows - len(state.unwritten)
        with self.directory.metrics_path.open("rb") as file:
            lines = file.readlines()[: max(0, in_file)]
        if len(lines) != in_file:
            yield f"metrics.jsonl has {len(lines)} rows, of which it counts {in_file}"
        lines += [f"{row}\n".encode() for row in state.unwritten]
        if hashlib.sha256(b"".join(lines)).hexdigest() != state.metrics_sha256:
            yield f"the first {state.rows} rows of metrics.jsonl are not as they were written"

    def _record_problems(self, state: RunState) -> Iterator[str]:
        for name, digest in state.records.items():
            path = self.directory.path / name
            if not path.is_file():
                yield f"{name} is missing, which was written before it"
            elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                yield f"{name} is not as it was written"
