"""The example package: one variant of each kind from outside, in one recipe."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.test_wheels import find_uv

from debate_protocol import gives_answers, read_transcripts
from debate_rollout.testing import check_engine

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "other_package"
RECIPE = str(PACKAGE / "recipe.yaml")
SHORT = ("form", "data", "reward", "advantage", "loss", "trainer", "evaluation", "health")
LONGEST = {f"{name}.py": 40 for name in SHORT} | {"engine.py": 70}


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
        [sys.executable, "-m", "debate_train", RECIPE, *arguments],
        env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
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
    # Of each of 2 questions 1 direct reply, a debate of 4 turns and 2 more of the mode's.
    assert "1 direct reply and 4 turns of debate and 8 turns of second_thoughts" in done.stdout
    assert "at most 26 turns, 416 tokens in replies" in done.stdout
    assert "context: at most 103 tokens (prompt 87 of agent 0 in round 2 + reply 16" in done.stdout


@pytest.mark.parametrize(
    "typos",
    [
        {
            "data.larges=3": "data.larges: unknown key; did you mean 'largest'?",
            "reward.wrds=3": "reward.wrds: unknown key; did you mean 'words'?",
            "advantage.momentm=0.3": "advantage.momentm: unknown key; did you mean 'momentum'?",
            "loss.clip_hihg=0.3": "loss.clip_hihg: unknown key; did you mean 'clip_high'?",
            "trainer.scal=3": "trainer.scal: unknown key; did you mean 'scale'?",
            "evaluation.modes.again.debats=3": "again.debats: unknown key; did you mean 'debates'?",
        },
        {
            "debate.type=devils_advocat": "did you mean 'devils_advocate'?",
            "rollout.engine.type=plane": "did you mean 'plain'?",
            "advantage.type=standardized": "did you mean 'standardised'?",
            "trainer.type=rooot": "did you mean 'root'?",
            "evaluation.modes.again.type=second_thought": "did you mean 'second_thoughts'?",
        },
    ],
    ids=["keys", "types"],
)
def test_typos_in_variants_from_outside_get_the_nearest_names(
    site: Path, typos: dict[str, str]
) -> None:
    done = command(site, "--check", *typos)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    for change, hint in typos.items():
        (said,) = [line for line in lines if change.partition("=")[0] + ":" in line]
        assert said.endswith(hint)


def test_variants_from_outside_train_are_measured_kept_and_resumed(
    site: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    saved = "checkpoint.every=1"
    assert command(site, saved, "--output", str(whole)).returncode == 0
    kept = (whole / "recipe.yaml").read_text()
    named = ("devils_advocate", "plain", "sums", "brevity", "standardised", "cispo", "root")
    for name in (*named, "second_thoughts"):
        assert f"type: {name}\n" in kept
    results = json.loads((whole / "results.json").read_text())
    assert results["steps"] == 2
    assert [row["measure"] for row in results["table"]][-1] == "again: new words"
    assert 0 < results["after"]["eval/again/new_words"]["mean"] <= 1
    assert "Held out: again" in (whole / "report.html").read_text()
    debate = read_transcripts(next((whole / "transcripts").glob("*.jsonl")))[0]
    assert [gives_answers(debate.protocol, agent) for agent in range(3)] == [True, False, False]
    # Two advocates of one round: each sees the proposal alone, and neither the other.
    assert [turn.shown for turn in debate.turns if turn.agent] == [((0, 0),), ((0, 0),)]

    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoints" / "step-000002")
    (parts / "results.json").unlink()
    again = command(site, saved, "--resume", "--output", str(parts))
    assert again.returncode == 0, again.stderr
    # The moments of the first step count in the second: a resume without them parts here.
    rows = [logged(whole), logged(parts)]
    assert rows[0] == rows[1]
    rates = [row["optim/learning_rate"] for row in rows[0] if "optim/learning_rate" in row]
    assert rates == pytest.approx([1e-3, 1e-3 * (3 / 4) ** 0.5])
    state = "advantage/baseline/generator/mean"
    assert len({row[state] for row in rows[0] if state in row}) == 2
    assert json.loads((parts / "results.json").read_text())["after"] == results["after"]


def logged(run: Path) -> list[dict[str, object]]:
    """Return the rows of metrics without what depends on the clock and on memory."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    clock = ("time", "tokens_per_s", "memory/")
    return [{k: v for k, v in row.items() if not k.startswith(clock)} for row in rows]


def test_engine_from_outside_passes_the_conformance_suite(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    from my_debates.engine import Plain  # type: ignore[import-not-found]

    from debate_train.models import ScratchModel
    from debate_train.models.loaded_model import export_weights

    small = ScratchModel(layers=1, hidden_size=32, ffn_size=32)
    loaded, others = small.load(0), small.load(1)
    engine = Plain().open(loaded.model, loaded.tokenizer)
    outcome = check_engine(engine, export_weights(others, 1))
    passed = {name for name, said in outcome.items() if said == "passed"}
    assert {"stop string", "same seed, same reply", "over-long prompt", "full refresh"} <= passed
