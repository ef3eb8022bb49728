"""The temperature of each turn, from persona and sampler through rows to the trained policy."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arithmetic import UNIT, in_float64
from debate_protocol.forms import Simultaneous
from debate_protocol.prompts import Persona
from debate_protocol.types import Question
from debate_rollout.drivers import play
from debate_rollout.engines import TransformersEngine
from debate_train.advantages import Stream
from debate_train.batches.forward import token_logps
from debate_train.batches.packs import make_pack
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import build_batch
from debate_train.commands.cli import main
from debate_train.models.loaded_model import LoadedModel
from train.small_recipes import FILE

pytestmark = pytest.mark.numeric

TEMPERATURES = (0.5, 1.0, 1.75)


def tempered_logps(loaded: LoadedModel, row: Row, temperatures: np.ndarray) -> np.ndarray:
    batch = Batch((replace(row, temperatures=temperatures),), ("generator",), 1, 1)
    with torch.no_grad(), in_float64():
        found, _ = token_logps(
            loaded.model, make_pack(batch, [row.mask[row.sampled_positions]], [0], "none")
        )
    return found.numpy()


def test_each_turn_is_trained_at_the_temperature_of_its_persona(
    tiny: Callable[..., LoadedModel],
) -> None:
    loaded = tiny()
    loaded.model.double()
    personas = tuple(Persona(name=f"p{t}", temperature=t) for t in TEMPERATURES)
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas=personas)
    engine = TransformersEngine(max_batch=8).open(loaded.model, loaded.tokenizer)
    runs = [form.start(Question(f"q{k}", "make 4 Q 6 5 1 6"), seed=k) for k in range(2)]
    with in_float64():
        transcripts = play(runs, engine, max_tokens=12)
    batch = build_batch(transcripts, [{}, {}], {"generator": Stream()}, loaded.tokenizer)
    assert batch.turns == 12
    for row in batch.rows:
        spoken = row.mask > 0
        temperatures = row.over_tokens("temperatures")
        assert set(temperatures[spoken]) == {np.float32(TEMPERATURES[row.agent])}
        assert set(temperatures[~spoken]) == {1.0}
        # Sampler and trainer mean the same distribution, and no other temperature does.
        found = tempered_logps(loaded, row, row.temperatures)
        # Rows keep log-probabilities in float32: rounded once.
        np.testing.assert_allclose(row.sampler_logps, found, rtol=UNIT, atol=1e-12)
        if TEMPERATURES[row.agent] != 1.0:
            flat = tempered_logps(loaded, row, np.ones_like(row.temperatures))
            assert np.abs(flat - row.sampler_logps).max() > 0.1


@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=20", "min_p=0.05"])
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo_clip"])
def test_check_refuses_cut_distributions_in_reinforcement_learning(
    setting: str, loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(FILE)
    argv = [str(path), "--check", f"loss={{type: {loss}}}"]
    assert main(argv) == 0
    capsys.readouterr()
    assert main([*argv, f"rollout.{setting}"]) == 2
    assert "top_p < 1, top_k and min_p cut the distribution" in capsys.readouterr().err
