"""The key is blanked in what an endpoint says; other text stays."""

import pytest

from debate_rollout.engines.endpoints import key_hider

KEY = "sk-proj-Zq7Rk2Wm9Xv4Tb6Yc1Nd8Hf3Jg5"
TEXT = "The answer is 42. It follows from step 3: a task-based **sum** of 1, 2, 3 and 36."


@pytest.mark.parametrize("echo", [KEY, f"Bearer {KEY}", KEY.upper()])
def test_key_is_blanked_when_it_is_written(echo: str) -> None:
    hide = key_hider(KEY)
    for before, after in (("", ""), ("Your key is ", ", thank you.")):
        found = hide(f"{before}{echo}{after}")
        assert KEY.lower() not in found.lower()
        assert "[key]" in found and found.startswith(before) and found.endswith(after)
    assert KEY not in repr(hide)


def test_other_text_stays_as_it_is() -> None:
    for key in (KEY, "hf_" + "a1B2c3D4e5F6g7H8i9J0", "gsk_0123456789abcdefghij"):
        assert key_hider(key)(TEXT) == TEXT
    assert key_hider(None)(KEY) == KEY
    for no_secret in ("EMPTY", "none", "dummy", "x"):
        assert key_hider(no_secret)(f"an {no_secret} set") == f"an {no_secret} set"
