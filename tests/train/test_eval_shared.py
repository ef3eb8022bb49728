"""What an evaluation hands over and takes in: values of questions, and replies known before."""

from collections.abc import Sequence

from debate_protocol.types import Reply, TurnRequest
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.playing.shared_turns import SharedTurns, turn_request_key
from debate_train.recipe import Recipe

QUESTIONS = SignsPuzzle().open().split("test", 2)
RECIPE = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 2, "runs": 2},
    }
)


def measured(shared: SharedTurns | None = None) -> tuple[dict[str, Reply], Measures]:
    """Evaluate with agents whose words follow from the seed; return what was sampled, too."""
    sampled: dict[str, Reply] = {}

    def script(turn_request: TurnRequest) -> str:
        return f"<solution> {'+ + +' if turn_request.seed % 2 else '- - -'} </solution>"

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    generate = engine.generate

    def kept(requests: Sequence[Request]) -> list[Reply]:
        replies = generate(requests)
        sampled.update(
            {
                turn_request_key(one.turn_request): its
                for one, its in zip(requests, replies, strict=True)
            }
        )
        return replies

    engine.generate = kept  # type: ignore[method-assign]
    return sampled, evaluate(RECIPE.evaluated(), engine, QUESTIONS, "test", shared=shared)


def test_evaluate_hands_over_the_value_of_each_question() -> None:
    _, found = measured()
    ratios = set(found.found) - set(found.values)
    # Sums over all questions are divided, so that a question has no value of its own.
    assert {name.split("/")[-2] for name in ratios if "round_" in name} <= {
        "rho",
        "n_eff",
        "tokens",
    }
    assert set(found.values) < set(found.found) and "eval/improvement" in ratios
    for name, by_question in found.values.items():
        assert set(by_question) <= {question.id for question in QUESTIONS}
        measure = found.found[name]
        assert measure.questions == len(by_question)
        assert sum(by_question.values()) / len(by_question) == measure.mean


def test_evaluate_asks_for_nothing_that_is_known() -> None:
    sampled, found = measured()
    left_out = sorted(sampled)[3]
    again, same = measured(SharedTurns({k: v for k, v in sampled.items() if k != left_out}))
    assert set(again) == {left_out}
    assert same.values == found.values
