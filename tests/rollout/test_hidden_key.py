"""The key is blanked in what an endpoint says, however it writes it; other text stays."""

import random
import string
import time
import urllib.parse

import pytest

from debate_rollout.engines.endpoints import HiddenKey

KEY = "sk-proj-Zq7Rk2Wm9Xv4Tb6Yc1Nd8Hf3Jg5"
TEXT = "The answer is 42. It follows from step 3: a task-based **sum** of 1, 2, 3 and 36."


def written(key: str) -> dict[str, str]:
    return {
        "plain": key,
        "bearer": f"Bearer {key}",
        "capitals": key.upper(),
        "quoted": urllib.parse.quote(key),
        "half": key[:18],
        "other half": key[18:],
        "middle": key[9:20],
    }


def leaks(text: str, key: str) -> bool:
    """Whether eight characters of the key are left."""
    return any(key[k : k + 8].lower() in text.lower() for k in range(len(key) - 7))


@pytest.mark.parametrize("way", written(KEY))
def test_key_is_blanked_when_it_is_written(way: str) -> None:
    hide, echo = HiddenKey(KEY), written(KEY)[way]
    for before, after in (("", ""), ("Your key is ", ", thank you.")):
        found = hide(f"{before}{echo}{after}")
        assert not leaks(found, KEY), found
        assert "[key]" in found and found.startswith(before) and found.endswith(after)
    shown = repr(hide) + str(hide)
    assert KEY not in shown


@pytest.mark.parametrize("seed", range(20))
def test_key_is_blanked_when_it_stands_anywhere_in_other_text(seed: int) -> None:
    rng = random.Random(seed)
    key = "".join(rng.choices(string.ascii_letters + string.digits + "-_", k=rng.randint(16, 160)))
    words = ["".join(rng.choices(string.printable, k=rng.randint(0, 30))) for _ in range(6)]
    text = words[0] + key + words[1] + key[: len(key) // 2] + words[2] + key.upper() + words[3]
    found = HiddenKey(key)(text)
    assert not any(key[k : k + 8] in found for k in range(len(key) - 7))
    assert all(word.strip() in found for word in words[:4] if word.strip().isalpha())


def test_other_text_stays_as_it_is() -> None:
    for key in (KEY, "hf_" + "a1B2c3D4e5F6g7H8i9J0", "gsk_0123456789abcdefghij"):
        assert HiddenKey(key)(TEXT) == TEXT
    assert HiddenKey(None)(KEY) == KEY
    for no_secret in ("EMPTY", "none", "dummy", "x"):
        assert HiddenKey(no_secret)(f"an {no_secret} set") == f"an {no_secret} set"


def test_time_is_linear_in_the_text() -> None:
    hide = HiddenKey(KEY)

    def seconds(text: str) -> float:
        began = time.process_time()
        hide(text)
        return time.process_time() - began

    for pattern in ("*", "sk-pr", KEY[:11] + "*", KEY[8:15] + " ", "a"):
        small, large = (pattern * (size // len(pattern)) for size in (8_000, 64_000))
        # Eight times the text; quadratic time would be 64 times that of the small one.
        assert seconds(large) < 24 * max(min(seconds(small) for _ in range(3)), 0.002), pattern
