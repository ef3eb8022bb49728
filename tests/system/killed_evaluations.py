"""Kill evaluations at many moments, go on with them, and print how they ended, as JSON.

Run by `test_eval_kill.py` in a process of its own, which forks after its imports: a start costs
nothing. An evaluation is killed before its n-th file operation, or in the middle of the line that
keeps the replies of the n-th call of the engine; then it is resumed and compared with one that
nobody killed.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from debate_protocol.types import Reply
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import ReplyJournal
from debate_train.models import ScratchModel

RECIPE = """\
name: tiny
steps: 1
model:
  {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 6}
reward: {type: win_rate}
loss: {type: sft}
trainer: {type: torch}
evaluation:
  questions: 3
  direct_samples: 2
  runs: 2
  modes: {longer: {type: debate, max_rounds: 3}}
"""
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
_LONGEST_S = 60


def launch(folder: Path, resume: bool, operation: int = 0, call: int = 0) -> int:
    """Evaluate in a child, which is killed at a moment; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        signal.alarm(_LONGEST_S)
        try:
            log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            counts = _killed_at(str(folder / "found"), operation, call)
            code = main([*_arguments(folder), *(["--resume"] if resume else [])])
            (folder / "counts.json").write_text(json.dumps(counts))
            sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _arguments(folder: Path) -> list[str]:
    policies = ["--policy", "recipe", "--policy", f"other={folder.parent / 'other'}"]
    return [str(folder / "recipe.yaml"), *policies, "--output", str(folder / "found")]


def _killed_at(folder: str, operation: int, call: int) -> list[int]:
    """Count file operations and calls of the engine; kill this process at one of them."""
    counts = [0, 0]

    def hook(event: str, found: tuple[Any, ...]) -> None:
        if event in _WRITES or (event == "open" and folder in str(found[0])):
            counts[0] += 1
            if counts[0] == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    append = ReplyJournal.append

    def counted(self: ReplyJournal, replies: Iterable[tuple[str, Reply]]) -> None:
        counts[1] += 1
        if counts[1] == call:
            self._file = _Torn(self._file)  # type: ignore[assignment]
        append(self, replies)

    ReplyJournal.append = counted  # type: ignore[method-assign]
    sys.addaudithook(hook)
    return counts


class _Torn:
    """A file of which half a line is written, when the process is killed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, line: bytes) -> None:
        self._file.write(line[: len(line) // 2])
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def kept(folder: Path) -> dict[str, bytes]:
    """Return all files of an evaluation but what says when and where it was made."""
    files = (path for path in sorted((folder / "found").rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in ("environment.json", ".lock")
    }


def prepared(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def go(root: Path) -> dict[str, Any]:
    """Return what each moment led to."""
    torch.set_num_threads(1)  # The threads of OpenMP do not outlive a fork.
    sizes = {"hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn_size": 8}
    other = ScratchModel.model_validate(sizes).load(1)
    for part in (other.model, other.tokenizer):
        part.save_pretrained(root / "other")
    with contextlib.redirect_stdout(sys.stderr):  # Imports here what no child then has to.
        assert main(_arguments(prepared(root / "warm"))) == 0
    whole = prepared(root / "whole")
    assert launch(whole, resume=False) == 0, (whole / "log.txt").read_text()
    expected = kept(whole)
    operations, calls = json.loads((whole / "counts.json").read_text())
    moments = [(1 + k * operations // 12, 0) for k in range(12)]
    moments += [(0, 1 + k * calls // 4) for k in range(4)]
    chains = []
    for operation, call in moments:
        folder = prepared(root / "killed")
        first = launch(folder, resume=False, operation=operation, call=call)
        began = (folder / "found").is_dir()
        last = launch(folder, resume=began)
        found = kept(folder)
        chains.append(
            {
                "moment": [operation, call],
                "codes": [first, last],
                "began": began,
                "differences": sorted(
                    name
                    for name in expected.keys() | found.keys()
                    if expected.get(name) != found.get(name)
                ),
                "log": (folder / "log.txt").read_text()[-1500:] if last else "",
            }
        )
    return {"files": sorted(expected), "operations": operations, "calls": calls, "chains": chains}


if __name__ == "__main__":
    print("\n" + json.dumps(go(Path(sys.argv[1]))))
