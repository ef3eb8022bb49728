"""An earlier commit of this repository, laid out in a temporary folder."""

import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def earlier_build(commit: str) -> Iterator[Path]:
    """Lay out the packages and recipes of a commit, and remove them afterwards."""
    archive = subprocess.run(
        ["git", "archive", commit, "packages", "recipes"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packages:
            packages.extractall(folder, filter="data")
        yield Path(folder)
