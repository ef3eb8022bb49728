"""What a run directory may suffer: everything that `mutate_run_directories.py` does to one."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from debate_train.checkpointing.checkpoint_manifest import MANIFEST, Manifest, seal

Damage = Callable[[Path], None]
GARBAGE = bytes(range(256)) * 3
CONTENTS = {"empty": b"", "garbage": GARBAGE, "list": b"[]\n", "scalar": b"1\n", "null": b"null\n"}
OF_STATE: dict[str, list[Any]] = {
    "phase": [-1, 0, 2, 99, "1", None, 1.5],
    "phase_start": [-1, 0, 1, 99, "2"],
    "step": [-1, 0, 99, True],
    "rows": [-1, 0, 1, 10**9, "5"],
    "exit_criteria": [{}, {"warm_start": True}, {"nobody": False}, {"warm_start": 1}, None],
    "before": [None, {}, {"eval/format": 1}, [], {"nobody": {"mean": 1}}],
    "looked": [
        None,
        ["nobody", 4, {}],
        ["self_play", 99, {}],
        ["self_play", 4, {"eval/format": 9}],
    ],
    "best": [{"step": 99, "metric": "eval/format", "value": 0}, {"step": 1}, 3],
    "owes_look": ["yes", 2],
    "seconds": [{"warm_start": -1}, {"nobody": 1.0}, {"warm_start": "x"}, []],
    "records": [{"../x": "0"}, {"/etc/hostname": "0"}, {"tokens/step-1.safetensors": "0"}, 7],
    "metrics_sha256": ["", "0" * 64, 5],
    "nobody": [1],
}
OF_TRAINER: dict[str, list[Any]] = {
    "schedule_steps": [-1, 0, 99, "2"],
    "optimizer_steps": ["negative", "zero", "huge", "fraction", "stranger", {}],
    "skipped_in_a_row": [-1, 99, "x"],
}
OF_RANDOM: dict[str, list[Any]] = {
    "python": [
        [3, [-1] * 625, None],
        [3, [2**40] * 625, None],
        [2, [1] * 625, None],
        [3, [], None],
    ],
    "numpy": [["MT19937", [-1] * 624, 0, 0, 0.0], ["MT19937", [1] * 624, 700, 0, 0.0], 3],
    "torch": ["", "zz", "00" * 8, "ff" * 5056],
    "cuda": ["x", [1]],
}


def damages(stopped: Path, ended: Path) -> Iterator[tuple[str, Path, Damage]]:
    """Yield every damage: its name, the run directory that it is done to, and what does it."""
    for base in (stopped, ended):
        for path in sorted(base.rglob("*")):
            name = path.relative_to(base)
            for how, act in _of_path(path).items():
                yield f"{base.parent.name}: {name}: {how}", base, partial(_at, name, act)
    last = max((stopped / "checkpoints").glob("step-*"))
    for extra in ("step-000099", "refused-000003", f"refused-{last.name[5:]}", ".writing-000004"):
        at = Path("checkpoints") / extra
        yield f"extra: {extra}: a file", stopped, partial(_at, at, lambda p: p.write_text("x"))
        yield f"extra: {extra}: a folder", stopped, partial(_at, at, lambda p: p.mkdir())
    for number, change in enumerate(_of_lines()):
        yield f"lines: metrics.jsonl {number}", stopped, partial(_lines, change)
    for name, act in _forgeries(last):
        yield f"forged: {name}", stopped, partial(_at, last.relative_to(stopped), act)


def _forgeries(checkpoint: Path) -> Iterator[tuple[str, Damage]]:
    for file, changes in (("state", OF_STATE), ("trainer", OF_TRAINER), ("random", OF_RANDOM)):
        for key, values in changes.items():
            for value in [*values, "removed"]:
                act = partial(_forge_json, f"{file}.json", key, value)
                yield f"{file}.json {key}={str(value)[:40]}", act
    for path in sorted(checkpoint.iterdir()):
        if path.suffix == ".safetensors":
            for how in TENSORS:
                yield f"{path.name} {how}", partial(_forge_tensors, path.name, how)
        if _is_read(path.name):
            yield f"{path.name} missing", partial(_forge_missing, path.name)


def _is_read(name: str) -> bool:
    return name.endswith(".safetensors") or name in ("state.json", "trainer.json", "random.json")


def _of_path(path: Path) -> dict[str, Damage]:
    found: dict[str, Damage] = {"missing": _remove, "link": _link}
    if path.is_dir():
        return found | {"a file": _become_file}
    found["a folder"] = _become_folder
    for name, content in CONTENTS.items():
        found[name] = partial(_write, content)
    if path.stat().st_size > 8:
        found["cut"] = lambda p: _write(p.read_bytes()[: p.stat().st_size // 2], p)
        found["one bit"] = _flip
    return found


def _at(name: Path, act: Damage, run: Path) -> None:
    act(run / name)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _link(path: Path) -> None:
    target = path.parent / f"elsewhere-{path.name}"
    target = Path(str(path.parents[len(path.parents) - 3])) / target.name
    target.unlink(missing_ok=True) if not target.is_dir() else shutil.rmtree(target)
    shutil.move(path, target)
    path.symlink_to(target)


def _become_file(path: Path) -> None:
    _remove(path)
    path.write_text("x")


def _become_folder(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _of_lines() -> list[Callable[[list[bytes]], list[bytes]]]:
    return [
        lambda x: [x[0], b"\n", *x[1:]],
        lambda x: [x[0], x[1][: len(x[1]) // 2] + b"\n", *x[2:]],
        lambda x: [x[0], b"[]\n", *x[1:]],
        lambda x: [x[1], x[0], *x[2:]],
        lambda x: x[:-1],
        lambda x: x[1:],
        lambda x: [x[0], *x],
        lambda x: [*x, b"[1]\n"],
        lambda x: [*x, GARBAGE.replace(b"\n", b"") + b"\n"],
        lambda x: [x[0].replace(b'"step": 1', b'"step": 2'), *x[1:]],
        lambda x: [x[0].replace(b"0", b"NaN", 1), *x[1:]],
        lambda x: [x[0].replace(b"warm_start", b"self_play"), *x[1:]],
    ]


def _lines(act: Callable[[list[bytes]], list[bytes]], run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(b"".join(act(path.read_bytes().splitlines(keepends=True))))


def _sealed(path: Path, act: Callable[[], None]) -> None:
    """Change a checkpoint and seal it again, as its run would."""
    manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
    (path / MANIFEST).unlink()
    act()
    seal(path, manifest.step, manifest.origin)


def _forge_json(file: str, key: str, value: Any, path: Path) -> None:
    def act() -> None:
        content = json.loads((path / file).read_text())
        if value == "removed":
            content.pop(key, None)
        elif key == "optimizer_steps" and isinstance(value, str):
            name = next(iter(content[key]))
            changed = {"negative": -1, "zero": 0, "huge": 10**9, "fraction": 1.5, "stranger": 1}
            content[key]["nobody" if value == "stranger" else name] = changed[value]
        else:
            content[key] = value
        (path / file).write_text(json.dumps(content))

    _sealed(path, act)


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().fill_(float("nan"))


_TYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)
TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    **{
        str(kind).removeprefix("torch."): (lambda t, kind=kind: t.to(kind))
        for kind in (
            torch.float16,
            torch.bfloat16,
            torch.float64,
            torch.int64,
            torch.int8,
            torch.bool,
        )
    },
    "nan": _nan,
    "inf": lambda t: t.clone().fill_(float("inf")),
    "longer": lambda t: torch.cat([t, t]),
    "flat": lambda t: t.flatten()[:1],
    "missing": lambda t: None,
}


def _forge_tensors(file: str, how: str, path: Path) -> None:
    def act() -> None:
        tensors = load_file(path / file)
        name = sorted(tensors)[0]
        changed = TENSORS[how](tensors.pop(name))
        if changed is not None:
            tensors[name] = changed.contiguous()
        (path / file).unlink()
        save_file(tensors, path / file, metadata={"format": "pt"})

    _sealed(path, act)


def _forge_missing(name: str, path: Path) -> None:
    _sealed(path, (path / name).unlink)
