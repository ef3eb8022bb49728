"""The headers of recipes name every setting that is another than that of their source."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
V2: dict[str, Any] = {
    # Overview, Appendix A, default configuration.
    "debate.num_agents": 3,
    "debate.max_rounds": 3,
    "debate.personas": "default",
    "debate.blind_review": True,
    "rollout.max_tokens": 8196,
    "data.batch_size": 16,
    "trainer.learning_rate": 3.0e-5,
    "trainer.schedule": "constant",
    "evaluation.every": 50,
    "checkpoint.every": 100,
    # Overview, section 2.2.
    "reward.ties": "ignore",
    "reward.duplicates": "count",
    "reward.unvoted": "literal",
    "reward.consensus": "inclusive",
    "loss.type": "importance_sampling",
    "advantage.baseline": "debate",
}
FORM: dict[str, Any] = {
    # The exact formulation; it gives no sizes.
    "debate.personas": "none",
    "debate.blind_review": False,
    "debate.conversation": "rebuild",
    "debate.contract": "five_section",
    "debate.on_failure": "abort",
    "reward.ties": "half",
    "reward.duplicates": "count",
    "loss.type": "importance_sampling",
    "advantage.baseline": "debate",
}
DAPO: dict[str, Any] = {
    # "Self-Debate Reinforcement Learning", section 6.1.1, appendix A.1 and eq. 7.
    "data.batch_size": 256,
    "rollout.debates_per_question": 8,
    "rollout.max_tokens": 8196,
    "trainer.learning_rate": 1.0e-6,
    "trainer.warmup_steps": 10,
    "trainer.minibatch_size": 128,
    "loss.type": "dapo",
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.28,
    "loss.kl.weight": 0.0,
    "loss.aggregation": "token_mean_group",
    "advantage.baseline": "prompt",
    "advantage.scale": "std",
}
SDRL = DAPO | {
    # The same, Algorithm 1, sections 5.1 to 6.1.1 and appendix A.1.
    "rollout.debates_per_question": 1,
    "debate.type": "self_debate",
    "debate.first_turns": 8,
    "debate.second_turns": 8,
    "advantage.leave_out_zeros": (1,),
}
CODE: dict[str, Any] = {
    # The authors' scripts for Qwen3-4B-Base.
    "debate.debate_prompt": "conversation",
    "debate.pair_max_tokens": 2048,
    "rollout.max_tokens": 8192,
    "rollout.oversample": 10,
    "loss.aggregation": "token_mean_batch",
    "loss.dual_clip": 10.0,
    "trainer.optimizer.weight_decay": 0.1,
    "evaluation.top_p": 0.9,
    "evaluation.direct_samples": 32,
}
SOURCES = {
    "sdrl_freq_math": SDRL | {"debate.pairing": "freq"},
    "papers/sdrl_freq_math_code": SDRL | {"debate.pairing": "freq"},
    "papers/sdrl_rand_math": SDRL | {"debate.pairing": "rand"},
    "sdrl_freq_puzzle": SDRL | {"debate.pairing": "freq"},
    "papers/sdrl_rand_puzzle": SDRL | {"debate.pairing": "rand"},
    "dapo_math": DAPO,
    "papers/grpo_math": DAPO,
    "dapo_puzzle": DAPO,
    "papers/dapo_sdrl_puzzle": DAPO,
    "selfplay_v2": V2,
    "papers/selfplay_v2_n3": V2,
    "papers/selfplay_v2_easier": V2
    | {"debate.max_rounds": 2, "trainer.learning_rate": 5.0e-5, "data.batch_size": 32},
    "papers/selfplay_v2_harder": V2 | {"debate.num_agents": 5},
    "papers/selfplay_win_rate": FORM,
    "papers/selfplay_win_minus_loss": FORM,
    "quickstart": V2,
}
NAMED = {
    "debate.num_agents": "N",
    "debate.max_rounds": "R = ",
    "data.batch_size": "batch",
    "trainer.learning_rate": "rate",
    "checkpoint.every": "save_every",
    "evaluation.every": "measured",
    "advantage.baseline": "Baselines",
    "loss.type": "importance sampling",
    "loss.kl.weight": "KL",
}
"""What a header calls a setting that it does not call by its key's last part or its value."""


def header(name: str) -> str:
    """The opening comment of a recipe, then those of the recipes that it extends."""
    lines = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    own = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    extended = [line.split()[1] for line in lines if line.startswith("extends:")]
    return " ".join(
        [*own, *(header(str((Path(name).parent / file).with_suffix(""))) for file in extended)]
    )


def differing(name: str, source: dict[str, Any]) -> list[str]:
    """The settings of a recipe's last phase that are others than those of its source."""
    loaded = load_recipe(str(RECIPES / f"{name}.yaml"), [], model=Recipe).recipe
    phase = list(loaded.phase_recipes().values())[-1]
    return [key for key, value in source.items() if reduce(getattr, key.split("."), phase) != value]


def test_dapo_recipe_has_the_numbers_of_its_source() -> None:
    assert differing("dapo_math", DAPO) == []
    recipe = load_recipe(str(RECIPES / "dapo_math.yaml"), [], model=Recipe).recipe
    overlong = recipe.reward.parts()["length"].reward.model_dump()
    assert (overlong["max_tokens"], overlong["buffer"], overlong["factor"]) == (8196, 2048, 1.0)
    # 256 x 8 responses in the paper's mini-batches of 128: 16 updates a step.
    assert recipe.steps == 200 and 200 * recipe.trainer.update_count(256 * 8) == 3200


@pytest.mark.parametrize("name", ["sdrl_freq_math", "papers/sdrl_rand_math"])
def test_sdrl_recipes_have_the_numbers_of_their_source(name: str) -> None:
    assert differing(name, SOURCES[name]) == []
    recipe = load_recipe(str(RECIPES / f"{name}.yaml"), [], model=Recipe).recipe
    keeping, debating = recipe.rollout.select.rules
    assert (keeping.type, keeping.group) == ("informative", "debate")
    assert (debating.type, debating.go_on, debating.others) == ("at_most", 128, "keep")
    dapo = load_recipe(str(RECIPES / "dapo_math.yaml"), [], model=Recipe).recipe
    assert recipe.reward == dapo.reward
    assert recipe.model.name == "Qwen/Qwen3-4B-Base"


def test_sdrl_recipe_of_the_authors_code_has_what_it_says() -> None:
    changed = CODE.keys() & SDRL.keys()
    assert changed == {"rollout.max_tokens", "loss.aggregation"}
    assert differing("papers/sdrl_freq_math_code", SDRL | {"debate.pairing": "freq"} | CODE) == []
    recipe = load_recipe(str(RECIPES / "papers/sdrl_freq_math_code.yaml"), [], model=Recipe).recipe
    assert recipe.rollout.select.rules[1].go_on == recipe.data.batch_size
    assert recipe.reward.parts()["length"].reward.max_tokens == 8192


def test_dapo_beside_the_sdrl_puzzle_differs_in_what_is_played_alone() -> None:
    loaded = {
        name: load_recipe(str(RECIPES / f"{name}.yaml"), [], model=Recipe).recipe.phase_recipes()
        for name in ("sdrl_freq_puzzle", "papers/dapo_sdrl_puzzle")
    }
    ours, other = loaded["papers/dapo_sdrl_puzzle"], loaded["sdrl_freq_puzzle"]
    for phase in other:
        parts = [x for x in Recipe.model_fields if x not in ("name", "phases")]
        found = [x for x in parts if getattr(ours[phase], x) != getattr(other[phase], x)]
        assert found == (["debate", "rollout", "advantage"] if phase == "reinforce" else [])


def test_grpo_recipes_leave_out_what_dapo_adds() -> None:
    for name in ("papers/grpo_math", "grpo_puzzle"):
        recipe = load_recipe(str(RECIPES / f"{name}.yaml"), [], model=Recipe).recipe
        phase = list(recipe.phase_recipes().values())[-1]
        assert (phase.rollout.select, phase.rollout.oversample) == (None, 1)
        assert (phase.reward.type, phase.loss.type) == ("verifiable", "grpo")
    changed = ["loss.type", "loss.clip_high", "loss.kl.weight", "loss.aggregation"]
    assert differing("papers/grpo_math", DAPO) == changed


@pytest.mark.parametrize("name", SOURCES)
def test_header_names_every_setting_that_is_another_than_the_sources(name: str) -> None:
    text = header(name)
    missing = [
        key
        for key in differing(name, SOURCES[name])
        if NAMED.get(key, "\0") not in text and key.rsplit(".", 1)[1] not in text
    ]
    if name == "quickstart":  # Says in words what its reward does, and that it runs for minutes.
        kept = ("consensus", "ties", "duplicates", "unvoted", "max_tokens", "every", "schedule")
        missing = [key for key in missing if key.rsplit(".", 1)[1] not in kept]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "selfplay_v2",
            ("leave_one_out", "mask", "ties: half", "duplicates: one", "agents 2 to 4"),
        ),
        ("papers/selfplay_v2_n3", ("Agent 2 in round 0", "save_every = 100")),
        ("papers/selfplay_win_rate", ("personas", "conversation: append", "duplicates: one")),
    ],
)
def test_header_says_how_the_reward_departs_from_the_text(
    name: str, words: tuple[str, ...]
) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    own = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert [word for word in words if word not in own] == []
