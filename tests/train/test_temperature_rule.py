"""The temperature of each turn, from persona and sampler through rows to the trained policy."""

from dataclasses import replace

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
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import build_batch
from debate_train.commands.cli import main
from train.small_recipes import FILE, write

pytestmark = pytest.mark.numeric

TEMPERATURES = (0.5, 1.0, 1.75)


def logps_at(loaded, row, temperatures):
    batch = Batch((replace(row, temperatures=temperatures),), ("generator",), 1, 1)
    pack = make_pack(batch, [row.mask[row.sampled_positions]], [0], "none")
    with torch.no_grad(), in_float64():
        return token_logps(loaded.model, pack)[0].numpy()


def test_each_turn_is_trained_at_the_temperature_of_its_persona(tiny):
    loaded = tiny()
    loaded.model.double()
    personas = tuple(Persona(name=f"p{t}", temperature=t) for t in TEMPERATURES)
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas=personas)
    engine = TransformersEngine(max_batch=8).open(loaded.model, loaded.tokenizer)
    with in_float64():
        run = form.start(Question("q", "make 4 Q 6 5 1 6"), seed=0)
        transcripts = play([run], engine, max_tokens=12)
    batch = build_batch(transcripts, [{}], {"generator": Stream()}, loaded.tokenizer)
    assert batch.turns == 6
    for row in batch.rows:
        temperature = np.float32(TEMPERATURES[row.agent])
        expected = np.where(row.mask > 0, temperature, np.float32(1))
        assert row.over_tokens("temperatures").tolist() == expected.tolist()
        # Sampler and trainer mean the same distribution, and no other temperature does.
        # Rows keep log-probabilities in float32: rounded once.
        logps = logps_at(loaded, row, row.temperatures)
        np.testing.assert_allclose(row.sampler_logps, logps, rtol=UNIT, atol=1e-12)
        if temperature != 1:
            at_1 = logps_at(loaded, row, np.ones_like(row.temperatures))
            assert np.abs(at_1 - row.sampler_logps).max() > 0.1


@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=20", "min_p=0.05"])
def test_check_refuses_cut_distributions_in_reinforcement_learning(setting, tmp_path, capsys):
    recipe = write(tmp_path, FILE + "loss: {type: importance_sampling}\n")
    assert main([str(recipe), "--check", f"rollout.{setting}"]) == 2
    assert "top_p < 1, top_k and min_p cut the distribution" in capsys.readouterr().err
