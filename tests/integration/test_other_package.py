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
from json_lines import timeless_metrics

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "other_package"
RECIPE = str(PACKAGE / "recipe.yaml")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package as pip does, into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    uv = find_uv(ROOT)
    if uv is None:
        pytest.skip("uv is not in $UV, on PATH or in .uv/bin")
    command = [uv, "pip", "install", "--no-deps", "--quiet"]
    completed = subprocess.run(
        [*command, "--python", sys.executable, "--target", str(folder), str(PACKAGE)],
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return folder


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "debate_train", RECIPE, *arguments],
        env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_variants_from_outside_are_checked_and_counted(site: Path) -> None:
    completed = command(site, "--check")
    assert (completed.returncode, completed.stderr) == (0, "")
    # A debate is four turns; its three agents' dialogues grow, so it becomes three samples.
    assert "2 questions x 1 debate = 2 debates; x 4 turns = 8 turns; 6 samples" in completed.stdout
    assert "data: sums, made as needed" in completed.stdout
    # Of each of 2 questions 1 direct reply, a debate of 4 turns and 2 more of the mode's.
    assert "1 direct reply and 4 turns of debate and 8 turns of second_thoughts" in completed.stdout
    assert "at most 26 turns, 416 tokens in replies" in completed.stdout
    assert (
        "context: at most 103 tokens (prompt 87 of agent 0 in round 2 + reply 16"
        in completed.stdout
    )


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
    completed = command(site, "--check", *typos)
    assert completed.returncode == 2
    lines = completed.stderr.splitlines()
    for change, hint in typos.items():
        (message,) = [line for line in lines if change.partition("=")[0] + ":" in line]
        assert message.endswith(hint)


def test_variants_from_outside_train_are_measured_kept_and_resumed(
    site: Path, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "whole"
    resumed = tmp_path / "parts"
    saved = "checkpoint.every=1"
    assert command(site, saved, "--output", str(undisturbed)).returncode == 0
    resolved_recipe = (undisturbed / "recipe.yaml").read_text()
    named = ("devils_advocate", "plain", "sums", "brevity", "standardised", "cispo", "root")
    for name in (*named, "second_thoughts"):
        assert f"type: {name}\n" in resolved_recipe
    results = json.loads((undisturbed / "results.json").read_text())
    assert results["steps"] == 2
    assert [row["measure"] for row in results["table"]][-1] == "again: new words"
    assert 0 < results["after"]["eval/again/new_words"]["mean"] <= 1
    assert "Held out: again" in (undisturbed / "report.html").read_text()
    debate = read_transcripts(next((undisturbed / "transcripts").glob("*.jsonl")))[0]
    assert [gives_answers(debate.protocol, agent) for agent in range(3)] == [True, False, False]
    # Two advocates of one round: each sees the proposal alone, and neither the other.
    assert [turn.shown for turn in debate.turns if turn.agent] == [((0, 0),), ((0, 0),)]

    shutil.copytree(undisturbed, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-000002")
    (resumed / "results.json").unlink()
    again = command(site, saved, "--resume", "--output", str(resumed))
    assert again.returncode == 0, again.stderr
    # The moments of the first step count in the second: a resume without them parts here.
    rows = [timeless_metrics(undisturbed), timeless_metrics(resumed)]
    assert rows[0] == rows[1]
    rates = [row["optim/learning_rate"] for row in rows[0] if "optim/learning_rate" in row]
    assert rates == pytest.approx([1e-3, 1e-3 * (3 / 4) ** 0.5])
    state = "advantage/baseline/generator/mean"
    assert len({row[state] for row in rows[0] if state in row}) == 2
    assert json.loads((resumed / "results.json").read_text())["after"] == results["after"]


def test_engine_from_outside_passes_the_conformance_suite(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    from my_debates.engine import Plain  # type: ignore[import-not-found]

    from debate_train.models import ScratchModel
    from debate_train.models.loaded_model import export_weights

    small = ScratchModel(layers=1, hidden_size=32, ffn_size=32)
    loaded = small.load(0)
    others = small.load(1)
    engine = Plain().open(loaded.model, loaded.tokenizer)
    outcome = check_engine(engine, export_weights(others, 1))
    passed = {name for name, result in outcome.items() if result == "passed"}
    assert {"stop string", "same seed, same reply", "over-long prompt", "full refresh"} <= passed
