"""Kill runs at random moments, go on with them, and print how they ended, as JSON.

Run by `test_kill.py` in its own process, which forks after its imports: a start costs nothing.
A run is killed before its n-th file operation, or after some seconds; then it is resumed, perhaps
killed again, and compared with a run that nobody killed.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import debate_train.playing.rollouts
import debate_train.playing.step_debates
import debate_train.recipe.check
import debate_train.running.phases
import debate_train.running.run
from debate_rewards.decisions import Answers
from debate_train.commands.cli import main

RECIPE = """\
name: tiny
steps: 3
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8}
reward: {type: v2}
# Turns of a model that can do nothing all fail: without a baseline they still teach.
advantage: {baseline: none}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-2, schedule: cosine, warmup_steps: 1}
evaluation: {questions: 2, direct_samples: 1, every: 2}
checkpoint: {every: 1, keep_last: 2, keep_best: {metric: eval/format}}
recording: {every: 1, debates: 1}
tracking: {wandb: false}
phases:
  warm_start:
    steps: 2
    rollout: {engine: {type: demonstrations}}
    reward: {type: verifiable, values: zero_one}
    loss: {type: sft, kl: {weight: 0}}
    # Never reached: looked at after 2 and 3 steps, then the run goes on all the same.
    exit_criterion: {metric: eval/format, at_least: 2, every: 1, max_steps: 3, if_missed: go_on}
  self_play: {}
"""
VARIANTS: dict[str, tuple[list[str], int]] = {
    "torch": ([], 18),
    "ahead": (["pipeline.max_staleness=1"], 6),
    "deepspeed": (["trainer.type=deepspeed", "phases.self_play.trainer.zero_stage=1"], 3),
    "selecting": (
        [
            "phases.self_play.debate.gate_after=[0]",
            "phases.self_play.rollout={oversample: 2, select: {type: in_order, rules: "
            "[{type: informative}, {type: at_most, go_on: 1}]}}",
        ],
        3,
    ),
    "conl": (
        [
            "debate={type: conl, num_agents: 3}",
            "phases.self_play.reward={type: conl, consensus: inclusive}",
        ],
        3,
    ),
    "judged": (
        [
            "debate={type: judged, opponent: critic, judges: 2, max_rounds: 3, diverge: true, "
            "contract: {name: worked, sections: [evaluation, solution]}}",
            "rollout.max_tokens=32",
            # The model decides nothing: verified answers teach beside votes.
            "phases.self_play.reward={type: mixed, mix: rewards, components: {votes: {weight: 1, "
            "reward: {type: judged}}, right: {weight: 1, reward: {type: verifiable}}}}",
            "phases.self_play.rollout.debates_per_question=2",
        ],
        3,
    ),
}
"""What is changed in the recipe, and how many kills there are to be."""
Command = Callable[[list[str]], int]
_CLOCKS = ("time_s", "time/", "memory/", "tokens_per_s", "seconds", "metrics_sha256", "sha256")
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
_LONGEST_S = 120


def _judged(answers: Answers) -> list[bool | None]:
    """Judge by lot: the model solves nothing, and two of three questions are to be kept."""
    lots = [zlib.crc32(question.id.encode()) % 3 for question, _ in answers]
    return [lot > 0 and index % 2 == 0 for index, lot in enumerate(lots)]


@dataclass
class Moment:
    """When a run gets a signal: before a file operation, or after seconds; never by default."""

    operation: int | None = None
    of: str = ""
    """What files are called, in part, whose operations are counted."""
    seconds: float | None = None
    signal: int = signal.SIGKILL
    """What is sent then."""
    largest_file: int | None = None
    """Not a moment, but a disk on which larger files do not fit."""
    was_sent: bool = False
    """Whether the signal came before the run had ended; set by `launch`."""


@dataclass
class Chain:
    """A run that was killed and gone on with until it ended."""

    variant: str
    kills: int = 0
    before_the_first_checkpoint: int = 0
    while_writing_one: int = 0
    differences: list[str] = field(default_factory=list)


def launch(
    folder: Path, arguments: list[str], moment: Moment, command: Command = main
) -> int | None:
    """Run a command in a child; return its exit code, None when it was killed."""
    child = os.fork()
    if child == 0:
        _be_the_command(folder, arguments, moment, command)
    if moment.seconds is not None:
        time.sleep(moment.seconds)
        moment.was_sent = not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if moment.was_sent:
            os.kill(child, moment.signal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if moment.operation is not None:  # A run that ended says how many operations it had.
        num_operations = (
            int((folder / "operations.txt").read_text()) if code == 0 else moment.operation
        )
        moment.was_sent = num_operations >= moment.operation
    return None if code == -signal.SIGKILL else code


def _be_the_command(folder: Path, arguments: list[str], moment: Moment, command: Command) -> None:
    code = 99
    signal.alarm(_LONGEST_S)
    # Commands in the background of a shell, or under nohup, ignore these, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In this child alone: tests import this module.
    debate_train.playing.step_debates.checked = _judged  # type: ignore[attr-defined]
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if moment.largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (moment.largest_file,) * 2)
        operations = _count_operations(str(folder / "run"), moment)
        code = command([str(folder / "recipe.yaml"), *arguments, "--output", str(folder / "run")])
        (folder / "operations.txt").write_text(str(operations[0]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _count_operations(folder: str, moment: Moment) -> list[int]:
    """Count file operations in the folder; send the signal before the moment's."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_own = event in _WRITES or (event == "open" and folder in str(arguments[0]))
        if is_own and moment.of in str(arguments[0]):
            count[0] += 1
            if count[0] == moment.operation:
                os.kill(os.getpid(), moment.signal)

    sys.addaudithook(hook)
    return count


def kept(run: Path) -> dict[str, Any]:
    """All that a run leaves, without what a clock says."""
    contents: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir() or name in ("environment.json", "report.html"):
            continue
        try:
            contents[name] = _read(path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            contents[name] = path.read_bytes()  # Damaged, and never read by the run.
    return contents


def _read(path: Path) -> Any:
    if path.name == "manifest.json":  # holds the hash of state.json, and so of its clocks
        return json.loads(path.read_text())["files"].keys()
    if path.suffix == ".jsonl" or path.name in ("results.json", "state.json"):
        return [_timeless(json.loads(text)) for text in _texts(path)]
    return path.read_bytes()


def _texts(path: Path) -> list[str]:
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(_CLOCKS)}


def different(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )


def prepared(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def whole(folder: Path, changes: list[str]) -> tuple[dict[str, Any], int, float]:
    """A run that nobody kills: what it leaves, its file operations and its seconds."""
    began = time.perf_counter()
    code = launch(prepared(folder), changes, Moment())
    assert code == 0, (folder / "log.txt").read_text()
    seconds, contents = time.perf_counter() - began, kept(folder / "run")
    assert any(row.get("optim/grad_norm") for row in contents["metrics.jsonl"]), (
        "nothing is learned"
    )
    return contents, int((folder / "operations.txt").read_text()), seconds


def chain(variant: str, folder: Path, rng: random.Random, expected: Any) -> Chain:
    """Kill a run again and again until it ends before it is killed."""
    changes = VARIANTS[variant][0]
    contents, operations, seconds = expected
    result, resume, share = Chain(variant), [], 1.0
    prepared(folder)
    while True:
        position = rng.random() * share
        by_operation = rng.random() < 0.7
        moment = (
            Moment(operation=1 + int(position * operations))
            if by_operation
            else Moment(seconds=position * seconds)
        )
        code = launch(folder, [*changes, *resume], moment)
        if code is not None:
            break
        checkpoints = folder / "run" / "checkpoints"
        if not any(checkpoints.glob("step-*")) and not any(checkpoints.glob(".replaced-*")):
            result.before_the_first_checkpoint += 1
            prepared(folder)
            continue
        result.kills += 1
        result.while_writing_one += any(checkpoints.glob(".writing-*"))
        resume, share = ["--resume"], 0.5
    result.differences = different(kept(folder / "run"), contents)
    if code != 0:
        result.differences.append((folder / "log.txt").read_text()[-2000:])
    return result


def warm_up(folder: Path) -> None:
    """Import here what a run imports on its way, so that no child has to."""
    torch.set_num_threads(1)  # The threads of OpenMP do not outlive a fork.
    import deepspeed
    import deepspeed.comm.torch  # noqa: F401

    prepared(folder)
    with contextlib.redirect_stdout(sys.stderr):
        main([str(folder / "recipe.yaml"), "--output", str(folder / "run")])


def full_disk(folder: Path, expected: Any) -> dict[str, Any]:
    """Let a run that was killed find no room for a checkpoint, and then find it."""
    contents, operations, _ = expected
    prepared(folder)
    launch(folder, [], Moment(operation=operations // 2))
    checkpoints = folder / "run" / "checkpoints"
    before = {path.name for path in checkpoints.iterdir() if path.name.startswith("step-")}
    (folder / "log.txt").unlink()
    # The optimizer's file has 14 576 bytes.
    code = launch(folder, ["--resume"], Moment(largest_file=13_000))
    log = (folder / "log.txt").read_text()
    after = {path.name for path in checkpoints.iterdir()}
    again = launch(folder, ["--resume"], Moment())
    return {
        "codes": [code, again],
        "log": log,
        "checkpoints": [sorted(before), sorted(after)],
        "differences": different(kept(folder / "run"), contents),
    }


def go(root: Path, seed: int) -> dict[str, Any]:
    """Return all chains, and what differs with another seed."""
    warm_up(root / "warm")
    rng = random.Random(seed)
    chains: list[Chain] = []
    for variant, (changes, num_kills) in VARIANTS.items():
        expected = whole(root / variant, changes)
        while sum(chained.kills for chained in chains if chained.variant == variant) < num_kills:
            chains.append(chain(variant, root / "killed", rng, expected))
            if chains[-1].differences:
                break
        if variant == "torch":
            other = whole(root / "other", ["seed=1"])[0]
            control = different(other, expected[0])
            full = full_disk(root / "full", expected)
    return {"chains": [vars(chained) for chained in chains], "control": control, "full_disk": full}


if __name__ == "__main__":
    print("\n" + json.dumps(go(Path(sys.argv[1]), int(sys.argv[2]))))
