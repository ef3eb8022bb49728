"""What the libraries offer by their own names, to people and to completion, and what that costs."""

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import debate_protocol
import debate_rewards
import debate_rollout
import debate_train

PACKAGES = [debate_protocol, debate_rewards, debate_rollout, debate_train]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_every_name_is_listed_and_there(package):
    assert package.__all__ == sorted(set(package.__all__))
    assert set(package.__all__) <= set(dir(package))
    tree = ast.parse(inspect.getsource(package))
    listed = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in listed for alias in node.names if alias.asname}
    assert set(homes) == set(package.__all__)
    for name, module in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = package.Nonsense


def test_names_that_debates_are_made_of_stand_at_the_top():
    nouns = {
        "Question",
        "Reply",
        "Transcript",
        "Turn",
        "TurnKey",
        "Protocol",
        "TurnRequest",
        "Contract",
    }
    forms = {"Simultaneous", "Sequential", "Direct", "SelfDebate", "ActorCritic"}
    files = {"from_json", "to_json", "read_transcripts", "write_transcripts", "from_xml", "to_xml"}
    assert nouns | forms | files <= set(dir(debate_protocol))


def test_importing_the_libraries_brings_nothing_that_takes_time():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import debate_protocol, debate_rewards, debate_rollout\n"
        "dir(debate_protocol), dir(debate_rewards), dir(debate_rollout)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))\n"
        "debate_protocol.Question, debate_protocol.from_json, debate_protocol.parse\n"
        "print(sorted({'pydantic', 'lxml', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['debate_protocol', 'debate_rewards', 'debate_rollout']",
        "[]",
    ]
