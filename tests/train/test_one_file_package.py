"""Another package whose one file has a debate form and an evaluation mode that plays any form."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from debate_protocol.forms import FORMS, Simultaneous
from debate_protocol.plugins import VariantNotLoadedWarning, Variants
from debate_train.evaluation import MODES
from debate_train.evaluation.settings import ModeChoice

Install = Callable[[str, str], None]
IMPORTS = """
from typing import Literal

from debate_protocol.forms import FormConfig, Simultaneous
from debate_train.evaluation import EvaluationMode, Plays
"""
FORM = """
class Pair(Simultaneous):
    type: Literal["pair"] = "pair"
    num_agents: Literal[2] = 2
"""
MODE = """
class Again(EvaluationMode):
    type: Literal["again"] = "again"
    form: FormConfig

    def plays(self, form):
        return (Plays(self.form, range(1)),)

    def figures(self, form):
        return {"turns": "turns"}

    def values(self, played):
        return {"turns": {one.question.id: float(len(one.turns)) for one in played[0]}}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what installs a package of one file; our unions read it as a new process would."""

    def written(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[debate_protocol.forms]\npair = {name}:Pair\n"
            f"[debate_train.evaluation]\nagain = {name}:Again\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        for union in (FORMS, MODES):
            assert union.by_type  # As it was, which is put back afterwards.
            monkeypatch.delitem(vars(union), "by_type")

    return written


@pytest.mark.parametrize("first", [FORMS, MODES])
def test_form_and_mode_of_one_file_are_found_whichever_is_read_first(
    install: Install, first: Variants[Any]
) -> None:
    install(f"pairs_{'form' if first is FORMS else 'mode'}", IMPORTS + FORM + MODE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(first) > 1 and "pair" in FORMS and "again" in MODES
        given = {"type": "again", "form": {"type": "pair", "max_rounds": 1, "style": "compact"}}
        mode = TypeAdapter(ModeChoice).validate_python(given)
    (plays,) = mode.plays(Simultaneous())
    assert (plays.form.type, plays.form.num_agents, plays.form.max_rounds) == ("pair", 2, 1)


def test_form_below_the_mode_that_reads_forms_is_named(install: Install) -> None:
    install("pairs_below", IMPORTS + MODE + FORM)
    with pytest.warns(VariantNotLoadedWarning, match="'pair' of package pairs_below"):
        assert "again" in MODES
    assert "pair" not in FORMS
