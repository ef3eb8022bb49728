"""Write the sample report of the site from a recorded quickstart, or record another one for it.

python docs/sample/sample_report.py PAGE
python docs/sample/sample_report.py --record RUN
"""

import argparse
import io
import lzma
import tarfile
import tempfile
from itertools import islice
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file

from debate_report import write_report

HERE = Path(__file__).resolve().parent
RECORDED_RUN = HERE / "run.tar.xz"
# The weights that a quickstart begins with ship with its recipe, so they are not recorded again.
START = HERE.parents[1] / "recipes/data/quickstart_start/model.safetensors"
PHASE_START = "phase_start.safetensors"
PHASE = "train"
# What the page reads of a run; optimizers, direct replies and token ids are not on it.
PATTERNS = (
    *("metrics.jsonl", "recipe.yaml", "results.json", "environment.json"),
    *("transcripts/*.jsonl", "tokens/*.json"),
    *("evaluations/before-debate-*.jsonl", "evaluations/after-debate-*.jsonl"),
    "evaluations/after-start-*.jsonl",
    *("checkpoints/*/config.json", "checkpoints/*/model.safetensors"),
    *("checkpoints/*/tokenizer.json", "checkpoints/*/tokenizer_config.json"),
    "checkpoints/*/chat_template.jinja",
)
# Debates of an evaluation that a page shows.
NUM_EVALUATED = 128


def record(run: Path) -> None:
    """Pack what the page reads of a run into `RECORDED_RUN`."""
    start = load_file(START)
    phase_start = load_file(run / PHASE_START)
    if any(not numpy.array_equal(phase_start[name], values) for name, values in start.items()):
        raise SystemExit(f"{run}: begins with other weights than {START}; expected a quickstart")
    files = sorted(path for pattern in PATTERNS for path in run.glob(pattern))
    with lzma.open(RECORDED_RUN, "wb", preset=9) as packed, tarfile.open(None, "w", packed) as tar:
        for path in files:
            content = path.read_bytes()
            if path.parent.name == "evaluations":
                lines = content.splitlines(keepends=True)
                content = b"".join(islice(lines, NUM_EVALUATED))
            entry = tarfile.TarInfo(f"{run.resolve().name}/{path.relative_to(run).as_posix()}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def write_page(page: Path) -> None:
    """Write the report of the recorded run."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RECORDED_RUN) as tar:
            tar.extractall(folder, filter="data")
        (run,) = Path(folder).iterdir()
        save_file(load_file(START), run / PHASE_START, metadata={"phase": PHASE})
        page.parent.mkdir(parents=True, exist_ok=True)
        write_report(run, page)


def main() -> None:
    """Write the page, or record a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, nargs="?", help="the page to write")
    parser.add_argument("--record", type=Path, metavar="RUN", help="a run of make quickstart")
    arguments = parser.parse_args()
    if arguments.record is not None:
        record(arguments.record)
    if arguments.page is not None:
        write_page(arguments.page)


if __name__ == "__main__":
    main()
