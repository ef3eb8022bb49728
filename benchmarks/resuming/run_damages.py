"""What a run directory may suffer: everything that `mutate_run_directories.py` does to one."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

Damage = Callable[[Path], None]
GARBAGE = bytes(range(256)) * 3
CONTENTS = {"empty": b"", "garbage": GARBAGE, "list": b"[]\n", "scalar": b"1\n", "null": b"null\n"}


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
