"""The example package: a form, an engine, data, a reward and a loss from outside, in one recipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.test_wheels import find_uv

from debate_protocol import gives_answers, read_transcripts
from debate_rollout.testing import check_engine

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "other_package"
RECIPE = str(PACKAGE / "recipe.yaml")
LONGEST = {"form.py": 40, "data.py": 40, "reward.py": 40, "loss.py": 40, "engine.py": 70}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package as pip does, into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    uv = find_uv(ROOT)
    if uv is None:
        pytest.skip("uv is not in $UV, on PATH or in .uv/bin")
    command = [uv, "pip", "install", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*command, "--python", sys.executable, "--target", str(folder), str(PACKAGE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "debate_train.cli", RECIPE, *arguments],
        env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_variants_from_outside_are_short() -> None:
    files = {file.name: file for file in (PACKAGE / "my_debates").glob("*.py")}
    assert set(files) == {"__init__.py", *LONGEST}
    for name, most in LONGEST.items():
        written = [line for line in files[name].read_text().splitlines() if line.strip()]
        assert len(written) <= most


def test_variants_from_outside_are_checked_and_counted(site: Path) -> None:
    done = command(site, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    # A debate is four turns; its three agents' dialogues grow, so it becomes three samples.
    assert "2 questions x 1 debate = 2 debates; x 4 turns = 8 turns; 6 samples" in done.stdout
    assert "data: sums, made as needed" in done.stdout
    assert "context: at most 100 tokens (prompt 84 of agent 0 in round 2 + reply 16" in done.stdout


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("debate.type=devils_advocat", "did you mean devils_advocate?"),
        ("rollout.engine.type=plane", "did you mean plain?"),
        ("data.larges=3", "data.larges: unknown key; did you mean largest?"),
        ("reward.wrds=3", "reward.wrds: unknown key; did you mean words?"),
        ("loss.clip_hihg=0.3", "loss.clip_hihg: unknown key; did you mean clip_high?"),
    ],
)
def test_typo_in_a_variant_from_outside_gets_the_nearest_name(
    site: Path, change: str, hint: str
) -> None:
    done = command(site, "--check", change)
    assert done.returncode == 2
    assert hint in done.stderr


def test_variants_from_outside_train_are_kept_and_resumed(site: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert command(site, "--output", str(output)).returncode == 0
    kept = (output / "recipe.yaml").read_text()
    for name in ("devils_advocate", "plain", "sums", "brevity", "cispo"):
        assert f"type: {name}\n" in kept
    results = json.loads((output / "results.json").read_text())
    assert results["steps"] == 2
    debate = read_transcripts(next((output / "transcripts").glob("*.jsonl")))[0]
    assert [gives_answers(debate.protocol, agent) for agent in range(3)] == [True, False, False]
    # Two advocates of one round: each sees the proposal alone, and neither the other.
    assert [turn.shown for turn in debate.turns if turn.agent] == [((0, 0),), ((0, 0),)]
    (output / "results.json").unlink()
    again = command(site, "--resume", "--output", str(output))
    assert again.returncode == 0, again.stderr
    assert json.loads((output / "results.json").read_text())["after"] == results["after"]


def test_engine_from_outside_passes_the_conformance_suite(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    from my_debates.engine import Plain  # type: ignore[import-not-found]

    from debate_train.models import ScratchModel
    from debate_train.policy import export_weights

    small = ScratchModel(layers=1, hidden_size=32, ffn_size=32)
    loaded, others = small.load(0), small.load(1)
    engine = Plain().open(loaded.model, loaded.tokenizer)
    outcome = check_engine(engine, export_weights(others, 1))
    passed = {name for name, said in outcome.items() if said == "passed"}
    assert {"stop string", "same seed, same reply", "over-long prompt", "full refresh"} <= passed
