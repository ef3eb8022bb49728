from debate_report.run_files import shown_change
from debate_train.checkpoints.resumes import recipe_changes

BEFORE = """\
seed: 0
loss: {type: ppo_clip, clip: 0.2}
advantage: {streams: {}}
phases:
  first: {trainer: {learning_rate: 0.001}}
exit_criterion: null
tags: [a, b]
url: ${oc.env:SERVICE_URL}
"""
NOW = """\
seed: 0
loss: {type: sft, aggregation: token_sum}
advantage: {streams: {critic: {weight: .inf}}}
phases:
  first: {trainer: {learning_rate: 0.0005}}
exit_criterion: null
tags: [b]
url: ${oc.env:SERVICE_URL}
"""


def test_recipe_changes_names_full_keys_with_both_values(monkeypatch):
    monkeypatch.setenv("SERVICE_URL", "value-of-the-environment")
    assert recipe_changes(BEFORE, NOW) == {
        "loss.type": {"before": "ppo_clip", "now": "sft"},
        "loss.clip": {"before": 0.2},
        "loss.aggregation": {"now": "token_sum"},
        "advantage.streams": {"before": {}},
        "advantage.streams.critic.weight": {"now": ".inf"},
        "phases.first.trainer.learning_rate": {"before": 0.001, "now": 0.0005},
        "tags": {"before": ["a", "b"], "now": ["b"]},
    }
    assert recipe_changes(BEFORE, BEFORE) == {}


def test_recipe_changes_keeps_what_is_written_when_the_environment_gives_the_value(monkeypatch):
    monkeypatch.setenv("SERVICE_URL", "value-of-the-environment")
    found = recipe_changes("url: http://localhost\n", "url: ${oc.env:SERVICE_URL}\n")
    assert found == {"url": {"before": "http://localhost", "now": "${oc.env:SERVICE_URL}"}}


def test_recipe_changes_tells_true_from_one():
    assert recipe_changes("a: true\n", "a: 1\n") == {"a": {"before": True, "now": 1}}


def test_shown_change_says_where_a_value_is_absent():
    assert shown_change({"before": 0.001, "now": 0.0005}) == "0.001 → 0.0005"
    assert shown_change({"before": None}) == "null → absent"
    assert shown_change({"now": "é"}) == 'absent → "é"'
