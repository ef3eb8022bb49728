"""Phases of learning from a set of examples, made once with the policy of the phase's start."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from debate_train.playing import check_of, start_debates
from debate_train.recipe import Recipe
from debate_train.running.run_context import Phase, RunContext

# Keys of a phase that decide the set of examples, beside the sampling of replies.
_DECISIVE_KEYS = ("seed", "model", "data", "debate", "offline")


def open_examples(run: RunContext, phase: Phase) -> PhaseExamples | None:
    """Read the examples of a phase, after making them if the run lacks them.

    After a signal the result is `None`; played debates are saved for the next call.

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
    held_out_path = _held_out_path(path)
    try:
        held_out = read_examples(held_out_path) if held_out_path.is_file() else []
        examples = PhaseExamples(read_examples(path), maker.metrics(), held_out)
    except ValueError as error:
        raise RunFailure(f"{error}; remove the file to make the examples again") from error
    for file in (path, held_out_path):
        if file.is_file():
            run.directory.note_record(file)
    if not examples.examples:
        left_out = {name: count for name, count in examples.counts.items() if "left_out" in name}
        reasons = ", ".join(f"{name}: {count:g}" for name, count in left_out.items())
        wanted = "debates that differ more, more of them (offline.questions), or a lower bar"
        is_of_file = phase.recipe.offline is not None and phase.recipe.offline.path is not None
        if is_of_file and list(left_out) == ["offline/left_out/no_readable_reply"]:
            wanted = "replies whose answers are marked as offline.imported.contract says"
        raise RunFailure(
            f"{phase.name}: found no example to learn from ({reasons}); expected {wanted}, see "
            "docs/offline.md"
        )
    return examples


def score_start(run: RunContext, phase: Phase, examples: PhaseExamples) -> None:
    """Score the held-out pairs by the untrained policy, at the first step of a phase."""
    if run.state.step == run.state.phase_start:
        held_out = example_batch(examples.held_out, 0)
        run.state.held_out_start = phase.trainer.score(held_out) if held_out.rows else []


def measure_held_out(run: RunContext, phase: Phase, examples: PhaseExamples) -> None:
    """Measure, record and print the preferences of an ended phase on the held-out pairs."""
    state = run.state
    scores_before = state.held_out_start
    state.held_out_start = []
    # Each pair has two scores; a resumed run may have none, or those of another set.
    if not scores_before or len(scores_before) != 2 * len(examples.held_out):
        return
    scores_after = phase.trainer.score(example_batch(examples.held_out, 0))
    accuracies = held_out_accuracies(examples.held_out, scores_before, scores_after)
    state.held_out[phase.name] = accuracies
    run.directory.metrics.log(phase.name, state.step, accuracies)
    run.tracker.log(phase.name, state.step, accuracies)

    def with_interval(name: str) -> str:
        mean = accuracies[f"held_out/{name}"]
        low = accuracies[f"held_out/{name}_low"]
        high = accuracies[f"held_out/{name}_high"]
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"

    is_above_chance = accuracies["held_out/preference_accuracy_low"] > 0.5
    run.progress.note(
        f"{phase.name}: on {accuracies['held_out/pairs']:g} held-out pairs of "
        f"{accuracies['held_out/questions']:g} questions: preference accuracy "
        f"{with_interval('preference_accuracy')}"
        f"{'' if is_above_chance else ', NOT shown to be above 0.5'}; "
        "the chosen reply is the likelier one: "
        f"{with_interval('likelihood_accuracy_before')} before, "
        f"{with_interval('likelihood_accuracy')} after"
    )


class _Maker:
    """Plays the debates of a phase in chunks of a batch of questions, and saves each chunk.

    A line of the unfinished file is a chunk; a line of the finished file is an example.
    """

    def __init__(self, run: RunContext, phase: Phase, path: Path) -> None:
        self._run = run
        self._phase = phase
        self._path = path
        self._unfinished_path = path.with_name(f"{path.stem}.unfinished")
        self._summary_path = path.with_name(f"{path.stem}.json")
        assert phase.recipe.offline is not None
        self._offline = phase.recipe.offline
        self._made_from = _made_from(phase.recipe, phase.name, run.state.phase_start)

    def is_made(self) -> bool:
        """Say whether the finished files exist and were made by this recipe.

        After a step of the phase they are intact: the resume has checked the checkpoint's files.

        Raises:
            RunFailure: A file has changed.
        """
        if self._run.state.step > self._run.state.phase_start:
            return True
        summary = read_as_written(self._summary_path) or {}
        hashes = {}
        for name, sha256 in summary.get("files", {}).items():
            hashes[self._path.with_name(name)] = sha256
        if summary.get(MADE_FROM) != self._made_from or not all(path.is_file() for path in hashes):
            return False
        for path, sha256 in hashes.items():
            if self._run.directory.note_record(path) != sha256:
                raise RunFailure(
                    f"{path}: is not as it was written (SHA-256 differs); put it back, or remove "
                    "it to make the examples again"
                )
        return True

    def metrics(self) -> dict[str, float]:
        """Read the counts and measures of the finished set, if they exist."""
        return dict((read_as_written(self._summary_path) or {}).get("metrics", {}))

    def make(self) -> bool:
        """Make the files; return False where a signal stops it."""
        run = self._run
        if self._offline.path is not None:
            chunk = run.interrupts.stoppable(self._read_chunk)
            if chunk is not None:
                self._finish([chunk])
            return chunk is not None
        chunks = self._read_unfinished()
        num_questions = self._offline.questions or PLAYED
        num_chunks = -(-num_questions // self._phase.recipe.data.batch_size)  # rounded up
        run.progress.start(f"{self._phase.name}: examples", num_chunks, "batches of questions")
        for number in range(len(chunks), num_chunks):
            chunk = run.interrupts.stoppable(lambda number=number: self._play_chunk(number))  # type: ignore[misc]
            if chunk is None:
                return False
            with written(self._unfinished_path), self._unfinished_path.open("ab") as file:
                file.write(_json_lines([with_hash(chunk)]))
            chunks.append(chunk)
            run.progress.step(number + 1, {})
        self._finish(chunks)
        return True

    def _read_unfinished(self) -> list[dict[str, Any]]:
        """Read the chunks of an earlier call by the same recipe, up to a damaged chunk."""
        chunks = []
        if self._unfinished_path.is_file():
            for line in self._unfinished_path.read_bytes().split(b"\n"):
                chunk = as_written(line) or {}
                if chunk.get(MADE_FROM) != self._made_from:
                    break
                chunks.append(chunk)
        # New chunks are appended, so nothing may follow the last good one.
        with written(self._unfinished_path):
            content = _json_lines([with_hash(chunk) for chunk in chunks])
            write_whole(self._unfinished_path, content)
        return chunks

    def _play_chunk(self, number: int) -> dict[str, Any]:
        """Play the debates of a batch of questions, and take their examples."""
        run = self._run
        phase = self._phase
        recipe = phase.recipe
        num_earlier = number * recipe.data.batch_size
        num_questions = self._offline.questions or PLAYED
        questions = phase.source.batch(run.state.phase_start + number)
        questions = questions[: num_questions - num_earlier]
        name = f"offline/{phase.name}/{number}"
        debates = start_debates(recipe, questions, name, check_of(phase.source))
        max_turns = max(form.turn_count() for form in recipe.forms)
        watched = run.progress.watch(debates, max_turns, "turns")
        engine = phase.demonstrator or run.engine
        return self._take_examples(recipe.rollout.play(watched, engine))

    def _read_chunk(self) -> dict[str, Any]:
        """Read the debates of the set's files, and take their examples."""
        run = self._run
        run.progress.note(f"{self._phase.name}: reading debates of {self._offline.path}")
        renderer = Renderer(run.loaded.tokenizer, run.loaded.template_kwargs)
        sources = [run.source, self._phase.source]
        window = run.engine.context_window
        transcripts, left_out = learned_from(self._offline, sources, renderer, window)
        chunk = self._take_examples(transcripts)
        chunk["counts"] |= left_out
        return chunk

    def _take_examples(self, transcripts: Sequence[Transcript]) -> dict[str, Any]:
        """Build a chunk: the examples of debates, first debates, counts."""
        recipe = self._phase.recipe
        learned, held_out = parted(transcripts, self._offline.held_out, recipe.seed)
        learned_set = self._offline.take(learned)
        held_out_set = self._offline.take(held_out)
        debates = []
        for transcript in transcripts[: recipe.recording.debates]:
            # The report needs no token ids, which would be most of the file.
            turns = tuple(replace(turn, reply=None) for turn in transcript.turns)
            debates.append(to_json(replace(transcript, turns=turns)))
        return {
            MADE_FROM: self._made_from,
            "examples": [self._fit(example).to_json() for example in learned_set.examples],
            "held_out": [self._fit(example).to_json() for example in held_out_set.examples],
            "debates": debates,
            **counted(learned_set, held_out_set, transcripts),
        }

    def _fit(self, example: Example) -> Example:
        """Fit an example to the model: token ids for a text without sampled ids, and an adapter."""
        loaded = self._run.loaded
        # Transcripts of another run may name adapters that this model lacks.
        if loaded.lora is None or example.adapter not in loaded.lora.adapters:
            example = replace(example, adapter=None)
        if example.chosen.token_ids:
            return example
        renderer = Renderer(loaded.tokenizer, loaded.template_kwargs)
        stop = self._phase.recipe.debate.contract_rules().stop
        token_ids = text_ids(example.chosen.text, renderer, stop)
        return replace(example, chosen=Completion(example.chosen.text, token_ids))

    def _finish(self, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Write the set, the held-out examples, first debates and the summary, and print it."""
        examples = []
        held_out = []
        debates = []
        for chunk in chunks:
            examples += [{**row, MADE_FROM: self._made_from} for row in chunk["examples"]]
            held_out += [{**row, MADE_FROM: self._made_from} for row in chunk["held_out"]]
            debates += chunk["debates"]
        metrics = summed(chunks)
        files = {self._path: examples}
        if self._offline.held_out:
            files[_held_out_path(self._path)] = held_out
        hashes = {}
        with written(self._path):
            debates_path = self._path.with_name(f"{self._path.stem}.debates.jsonl")
            write_whole(debates_path, _json_lines(debates))
            for path, rows in files.items():
                write_whole(path, _json_lines(rows))
                hashes[path.name] = self._run.directory.note_record(path)
            # The summary comes last: with it the set counts as made.
            summary = {MADE_FROM: self._made_from, "metrics": metrics, "files": hashes}
            write_json(self._summary_path, with_hash(summary))
            self._unfinished_path.unlink(missing_ok=True)
        counts = ", ".join(
            f"{name.removeprefix('offline/').replace('_', ' ')} {value:g}"
            for name, value in metrics.items()
            if "tokens" not in name
        )
        self._run.progress.note(f"{self._phase.name}: {len(examples):,} examples ({counts})")
        doubt = self._offline.doubt(metrics)
        if doubt is not None:
            self._run.progress.note(f"warning: {self._phase.name}: {doubt}")


def _held_out_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.held_out.jsonl")


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False).encode() for row in rows]
    return b"".join(line + b"\n" for line in lines)


def _made_from(recipe: Recipe, name: str, start: int) -> str:
    """Hash all settings and files behind a phase's examples."""
    settings = recipe.model_dump(mode="json", include=set(_DECISIVE_KEYS))
    # Another engine or driver may finish the set: its replies have the same sampling.
    rollout = recipe.rollout.model_dump(mode="json", exclude={"engine", "driver"})
    digests = [] if recipe.offline is None else [files_digest(recipe.offline)]
    return json_hash([name, start, settings, rollout, *digests])[:16]
