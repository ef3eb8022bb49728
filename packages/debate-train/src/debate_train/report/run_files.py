"""What a report reads from a run directory; files that are missing or torn leave a gap."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debate_protocol.contract import find_contract
from debate_protocol.transcripts import read_transcripts
from debate_protocol.types import Transcript
from debate_train.reading.recipe_changes import shown_change

_STEP = re.compile(r"(.*?)-?(\d+)")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The readable contents of one run directory."""

    name: str
    rows: tuple[dict[str, Any], ...]
    recipe: str
    results: dict[str, Any] | None
    environment: dict[str, Any]
    transcripts: tuple[Path, ...]

    @property
    def phases(self) -> list[str]:
        """Phases in the order they first reported."""
        return list(dict.fromkeys(str(row.get("phase", "")) for row in self.rows))

    @property
    def changes(self) -> list[tuple[int, str, str]]:
        """What resumes changed in the recipe: the first step made so, key, `before → now`.

        A resume from the same step or an earlier one undoes those before it.
        """
        kept: list[tuple[int, str, str]] = []
        resumed = self.environment.get("resumed")
        for one in resumed if isinstance(resumed, list) else ():
            step = one.get("from_step") if isinstance(one, Mapping) else None
            if not isinstance(step, int):
                continue
            kept = [change for change in kept if change[0] < step]
            found = one.get("changes")
            for key, change in found.items() if isinstance(found, Mapping) else ():
                if isinstance(change, Mapping):
                    kept.append((step, str(key), shown_change(change)))
        return kept


def read_run(run_dir: Path) -> RunFiles:
    """Read a run that may be unfinished.

    Raises:
        FileNotFoundError: The folder holds neither metrics nor a recipe.
    """
    if not any((run_dir / name).is_file() for name in ("metrics.jsonl", "recipe.yaml")):
        raise FileNotFoundError(
            f"{run_dir} is not a run directory: found neither metrics.jsonl nor recipe.yaml; "
            "give the folder that debate-train wrote"
        )
    rows = tuple(_rows(_text(run_dir / "metrics.jsonl")))
    phases = list(dict.fromkeys(str(row.get("phase", "")) for row in rows))
    return RunFiles(
        name=run_dir.resolve().name,
        rows=rows,
        recipe=_text(run_dir / "recipe.yaml"),
        results=_object(run_dir / "results.json"),
        environment=_object(run_dir / "environment.json") or {},
        transcripts=tuple(_in_order(run_dir / "transcripts", phases)),
    )


def read_debates(path: Path) -> list[Transcript]:
    """Return the debates of a file, none when it cannot be read.

    Debates under a contract that is named but not built in are left out: nobody here knows its
    sections.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A line cut off by an interrupt is one debate less.
            debates = read_transcripts(path)
    except (OSError, ValueError):
        return []
    return [debate for debate in debates if find_contract(debate.protocol.contract)]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _in_order(folder: Path, phases: Sequence[str]) -> list[Path]:
    """Sort transcript files by phase as it ran, then by the number that ends their name."""

    def place(path: Path) -> tuple[int, str, int]:
        match = _STEP.fullmatch(path.stem)
        phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
        return phases.index(phase) if phase in phases else len(phases), phase, step

    return sorted(folder.glob("*.jsonl"), key=place)
