"""Phases that learn from a set of examples: made once with the policy as it is at their start."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from debate_protocol.transcripts.files import to_json
from debate_protocol.types import Transcript
from debate_rollout.rendering import Renderer
from debate_train.checkpoints.run_directory import (
    as_written,
    file_name,
    json_hash,
    read_as_written,
    with_hash,
    write_json,
    written,
)
from debate_train.checkpoints.whole_files import remove_unfinished, write_whole
from debate_train.errors import RunFailure
from debate_train.offline import Example, read_examples
from debate_train.offline.example_set import (
    PhaseExamples,
    example_batch,
    files_digest,
    held_out_accuracies,
    learned_from,
    parted,
    text_ids,
)
from debate_train.offline.offline_set import MADE_FROM, PLAYED, Completion, counted, summed
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.running.run_context import Phase, RunContext

_DECIDES = ("seed", "model", "data", "debate", "offline")
"""Keys of a phase that decide which examples there are, beside how replies are sampled."""


def open_examples(run: RunContext, phase: Phase) -> PhaseExamples | None:
    """Return the examples of a phase; they are made where the run has none yet.

    None where a signal stops that: what was played is kept, and the same call goes on there.

    Raises:
        RunFailure: The debates gave no example.
    """
    start = run.state.phase_start
    path = run.directory.offline_path / f"{file_name(phase.name)}-{start:06d}.jsonl"
    with written(path):
        path.parent.mkdir(exist_ok=True)
        remove_unfinished(path.parent)
    maker = _Maker(run, phase, path)
    if not maker.is_made() and not maker.make():
        return None
    apart = _held_out_path(path)
    try:
        held_out = read_examples(apart) if apart.is_file() else []
        found = PhaseExamples(read_examples(path), maker.counts(), held_out)
    except ValueError as error:
        raise RunFailure(f"{error}; remove the file to make the examples again") from error
    for file in (path, apart):
        if file.is_file():
            run.directory.note_record(file)
    if not found.examples:
        left_out = ", ".join(f"{k}: {v:g}" for k, v in found.counts.items() if "left_out" in k)
        raise RunFailure(
            f"{phase.name}: found no example to learn from ({left_out}); expected debates that "
            "differ more, more of them (offline.questions), or a lower bar, see docs/offline.md"
        )
    return found


def score_start(run: RunContext, phase: Phase, examples: PhaseExamples) -> None:
    """Note what the policy makes of held-out pairs before it learns, unless it has learned."""
    if run.state.step == run.state.phase_start:
        held_out = example_batch(examples.held_out, 0)
        run.state.held_out_start = phase.trainer.score(held_out) if held_out.rows else []


def measure_held_out(run: RunContext, phase: Phase, examples: PhaseExamples) -> None:
    """Log, keep and say whether a phase that has ended prefers as its held-out pairs do."""
    state, before = run.state, run.state.held_out_start
    state.held_out_start = []
    if len(before) != 2 * len(examples.held_out) or not before:
        return
    after = phase.trainer.score(example_batch(examples.held_out, 0))
    found = held_out_accuracies(examples.held_out, before, after)
    state.held_out[phase.name] = found
    run.directory.metrics.log(phase.name, state.step, found)
    run.tracker.log(phase.name, state.step, found)

    def shown(name: str) -> str:
        mean, low, high = (found[f"held_out/{name}{end}"] for end in ("", "_low", "_high"))
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"

    is_shown = found["held_out/preference_accuracy_low"] > 0.5
    run.progress.note(
        f"{phase.name}: on {found['held_out/pairs']:g} held-out pairs of "
        f"{found['held_out/questions']:g} questions: preference accuracy "
        f"{shown('preference_accuracy')}{'' if is_shown else ', NOT shown to be above 0.5'}; "
        f"the chosen reply is the likelier one: {shown('likelihood_accuracy_before')} before, "
        f"{shown('likelihood_accuracy')} after"
    )


class _Maker:
    """Plays the debates of a phase in chunks of a batch of questions, and keeps each when it ends.

    A line of the unfinished file is one chunk; the finished file has one example a line.
    """

    def __init__(self, run: RunContext, phase: Phase, path: Path) -> None:
        self._run, self._phase, self._path = run, phase, path
        self._unfinished = path.with_name(f"{path.stem}.unfinished")
        self._said = path.with_name(f"{path.stem}.json")
        assert phase.recipe.offline is not None
        self._offline = phase.recipe.offline
        self._made_from = _made_from(phase.recipe, phase.name, run.state.phase_start)

    def is_made(self) -> bool:
        """Return whether the finished files are there and were made by this recipe.

        Once the phase has made a step they are as they were written: its checkpoint was checked.

        Raises:
            RunFailure: They are not as they were written.
        """
        if self._run.state.step > self._run.state.phase_start:
            return True
        said = read_as_written(self._said) or {}
        files = {self._path.with_name(name): sha for name, sha in said.get("files", {}).items()}
        if said.get(MADE_FROM) != self._made_from or not all(path.is_file() for path in files):
            return False
        for path, sha in files.items():
            if self._run.directory.note_record(path) != sha:
                raise RunFailure(
                    f"{path}: is not as it was written (SHA-256 differs); put it back, or remove "
                    "it to make the examples again"
                )
        return True

    def counts(self) -> dict[str, float]:
        """Return what was counted and measured while the examples were taken, if it is there."""
        return dict((read_as_written(self._said) or {}).get("metrics", {}))

    def make(self) -> bool:
        """Make the files; return False where a signal stops it."""
        run, recipe = self._run, self._phase.recipe
        if self._offline.path is not None:
            chunk = run.interrupts.stoppable(self._read_chunk)
            if chunk is not None:
                self._finish([chunk])
            return chunk is not None
        chunks = self._kept_chunks()
        wanted = -(-(self._offline.questions or PLAYED) // recipe.data.batch_size)
        run.progress.start(f"{self._phase.name}: examples", wanted, "batches of questions")
        for number in range(len(chunks), wanted):
            chunk = run.interrupts.stoppable(lambda number=number: self._chunk(number))  # type: ignore[misc]
            if chunk is None:
                return False
            with written(self._unfinished), self._unfinished.open("ab") as file:
                file.write(_lines([with_hash(chunk)]))
            chunks.append(chunk)
            run.progress.step(number + 1, {})
        self._finish(chunks)
        return True

    def _kept_chunks(self) -> list[dict[str, Any]]:
        """Return the chunks of an earlier call by the same recipe, up to one that is damaged."""
        lines = self._unfinished.read_bytes().split(b"\n") if self._unfinished.is_file() else []
        found = (as_written(line) or {} for line in lines)
        chunks = list(takewhile(lambda one: one.get(MADE_FROM) == self._made_from, found))
        with written(self._unfinished):
            write_whole(self._unfinished, _lines([with_hash(chunk) for chunk in chunks]))
        return chunks

    def _chunk(self, number: int) -> dict[str, Any]:
        """Play the debates of one batch of questions, and take their examples."""
        run, phase, recipe = self._run, self._phase, self._phase.recipe
        size = recipe.data.batch_size
        questions = phase.source.batch(run.state.phase_start + number)
        questions = questions[: (self._offline.questions or PLAYED) - number * size]
        debates = start_debates(recipe, questions, f"offline/{phase.name}/{number}")
        watched = run.progress.watch(debates, max(x.turn_count() for x in recipe.forms), "turns")
        return self._taken(recipe.rollout.play(watched, phase.demonstrator or run.engine))

    def _read_chunk(self) -> dict[str, Any]:
        """Read the debates of the files that the set names, and take their examples."""
        run = self._run
        run.progress.note(f"{self._phase.name}: reading debates of {self._offline.path}")
        renderer = Renderer(run.loaded.tokenizer, run.loaded.template_kwargs)
        sources, window = [run.source, self._phase.source], run.engine.context_window
        found, left_out = learned_from(self._offline, sources, renderer, window)
        chunk = self._taken(found)
        chunk["counts"] |= left_out
        return chunk

    def _taken(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        """Return the examples of debates as they are kept, with what was counted."""
        recipe = self._phase.recipe
        learned, kept_out = parted(transcripts, self._offline.held_out, recipe.seed)
        taken, apart = self._offline.take(learned), self._offline.take(kept_out)
        kept = transcripts[: recipe.recording.debates]
        return {
            MADE_FROM: self._made_from,
            "examples": [self._fitted(example).to_json() for example in taken.examples],
            "held_out": [self._fitted(example).to_json() for example in apart.examples],
            "debates": [to_json(_bare(transcript)) for transcript in kept],
            **counted(taken, apart, transcripts),
        }

    def _fitted(self, example: Example) -> Example:
        """Return an example with ids for a text that nobody sampled, and an adapter of this model.

        Transcripts of another run may name adapters that this one has not.
        """
        lora = self._run.loaded.lora
        if lora is None or example.adapter not in lora.adapters:
            example = replace(example, adapter=None)
        if example.chosen.token_ids:
            return example
        loaded = self._run.loaded
        renderer = Renderer(loaded.tokenizer, loaded.template_kwargs)
        stop = self._phase.recipe.debate.contract_rules().stop
        ids = text_ids(example.chosen.text, renderer, stop)
        return replace(example, chosen=Completion(example.chosen.text, ids))

    def _finish(self, chunks: Sequence[Mapping[str, Any]]) -> None:
        rows, apart = (
            [{**row, MADE_FROM: self._made_from} for chunk in chunks for row in chunk[which]]
            for which in ("examples", "held_out")
        )
        debates = [debate for chunk in chunks for debate in chunk["debates"]]
        metrics = summed(chunks)
        files = {self._path: rows} | (
            {_held_out_path(self._path): apart} if self._offline.held_out else {}
        )
        hashes = {}
        with written(self._path):
            write_whole(self._path.with_name(f"{self._path.stem}.debates.jsonl"), _lines(debates))
            for path, content in files.items():
                write_whole(path, _lines(content))
                hashes[path.name] = self._run.directory.note_record(path)
            said = {MADE_FROM: self._made_from, "metrics": metrics, "files": hashes}
            write_json(self._said, with_hash(said))
            self._unfinished.unlink(missing_ok=True)
        shown = ", ".join(
            f"{name.removeprefix('offline/').replace('_', ' ')} {value:g}"
            for name, value in metrics.items()
            if "tokens" not in name
        )
        self._run.progress.note(f"{self._phase.name}: {len(rows):,} examples ({shown})")
        if (doubt := self._offline.doubt(metrics)) is not None:
            self._run.progress.note(f"warning: {self._phase.name}: {doubt}")


def _held_out_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.held_out.jsonl")


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows
    )


def _made_from(recipe: Recipe, name: str, start: int) -> str:
    """Return a hash of all that decides which examples a phase has."""
    dumped = recipe.model_dump(mode="json", include=set(_DECIDES))
    rollout = recipe.rollout.model_dump(mode="json", exclude={"engine", "driver"})
    read = [] if recipe.offline is None else [files_digest(recipe.offline)]
    return json_hash([name, start, dumped, rollout, *read])[:16]


def _bare(transcript: Transcript) -> Transcript:
    return replace(transcript, turns=tuple(replace(t, reply=None) for t in transcript.turns))
