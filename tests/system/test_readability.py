"""How the source and the tests read: each figure has a bound that changes may only tighten."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
AT_MOST = {
    "packages": {
        "tokens a code line": 8.4,
        "names that say nothing, %": 1,
        "tuple assignments a 1,000 lines": 0.6,
        "nested comprehensions a 1,000 lines": 0.8,
        "late constants a 1,000 lines": 2.6,
        "docstrings that begin with Return, %": 1.5,
        "relative words a 1,000 of docstrings": 25.5,
        "longest __init__": 75,
        "class names used twice": 0,
    },
    "tests": {
        "tokens a code line": 9.8,
        "names that say nothing, %": 2.1,
        "tuple assignments a 1,000 lines": 1.8,
        "nested comprehensions a 1,000 lines": 3,
    },
}
AT_LEAST = {
    "packages": {"comments a 1,000 lines": 40, "code lines of a function": 10.2},
    "tests": {},
}


# Pairs of a recipe's model and one of its keys.
MOST_KEYS = 600


def load_script(path: str = ".ci/readability.py") -> ModuleType:
    spec = importlib.util.spec_from_file_location("script", ROOT / path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("folder", AT_MOST)
def test_folder_reads_no_worse_than_its_bounds(folder: str) -> None:
    table = load_script().measure(ROOT / folder)
    too_high = {k: table[k] for k, bound in AT_MOST[folder].items() if table[k] > bound}
    too_low = {k: table[k] for k, bound in AT_LEAST[folder].items() if table[k] < bound}
    assert not too_high and not too_low, "see .ci/readability.py"


def test_recipes_have_no_more_keys_than_their_bound() -> None:
    num_pairs = load_script("docs/reference/make_keys.py").count_pairs()
    assert num_pairs <= MOST_KEYS, "see docs/reference/make_keys.py --count"


def test_figures_are_counted_as_by_hand(tmp_path: Path) -> None:
    source = '''"""Say what it is for, whose words those are."""

def take(found):  # why
    """Return one."""
    a, b = found, 1
    return [x for y in a for x in y]

LATE = 1
'''
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    table = load_script().measure(tmp_path)
    # Code lines: def, assignment, return, LATE. Names bound: found, a, b, x, y, LATE.
    assert table["code lines"] == 4
    assert table["names that say nothing, %"] == pytest.approx(100 / 6)
    assert table["tuple assignments a 1,000 lines"] == 250
    assert table["nested comprehensions a 1,000 lines"] == 250
    assert table["comments a 1,000 lines"] == 250
    assert table["late constants a 1,000 lines"] == 250
    assert table["code lines of a function"] == 3
    assert table["docstrings that begin with Return, %"] == 100
    # Relative words: what, whose, those, one of the eleven words in both docstrings.
    assert table["relative words a 1,000 of docstrings"] == pytest.approx(4000 / 11)
