"""A run in a folder of the test's own, around pieces that the test hands in."""

from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from debate_rollout.engine import Weights
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import Step
from debate_train.checkpoints import Checkpoints, RunState, run_hash
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.data import DataSource
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.tracking import Tracker
from debate_train.recipe import Recipe
from debate_train.running.loop import train
from debate_train.running.run_context import Phase, RunContext, Saving, StopReason, open_phase


class Trainer:
    """Learns nothing, and notes what it is given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.versions: list[int] = []

    @property
    def completed(self) -> int:
        return len(self.batches)

    def step(self, batch: Batch) -> dict[str, float]:
        self.batches.append(batch)
        return {"loss": float(len(self.batches))}

    def weights(self, version: int) -> Weights:
        self.versions.append(version)
        return Weights(version, {})

    def save(self, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"")


@dataclass
class Kept(Saving):
    """Holds the steps whose updates were made, and those of them that were logged."""

    run: RunContext
    phase: Phase
    steps: list[Step] = field(default_factory=list)
    logged: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.run, self.phase)

    def complete(self, step: Step) -> None:
        self.steps.append(step)
        super().complete(step)

    def log(self) -> None:
        super().log()
        self.logged.append(self.steps[-1].number)


def context(recipe: Recipe, folder: Path, engine: Any, source: DataSource, tokenizer: Any) -> Any:
    """Return a run of this recipe; nothing of it is random, and no signal reaches it."""
    origin = run_hash("name: t")
    return RunContext(
        recipe=recipe,
        directory=RunDirectory.create(folder, "name: t\n"),
        tracker=Tracker(),
        progress=Progress(Console(file=StringIO()), live=False),
        interrupts=Interrupts(),
        source=source,
        engine=engine,
        loaded=LoadedModel(None, tokenizer),  # type: ignore[arg-type]
        checkpoints=Checkpoints(folder / "checkpoints", origin, 2),
        state=RunState(),
    )


def trained(run: RunContext, trainer: Any) -> tuple[StopReason, Kept]:
    """Train the only phase of a run; return why it ended and what it kept."""
    run.progress.start("train", run.recipe.steps)
    kept = Kept(run, open_phase(run, "train", run.recipe, trainer))
    try:
        return train(run, kept.phase, kept), kept
    finally:
        run.directory.close()
