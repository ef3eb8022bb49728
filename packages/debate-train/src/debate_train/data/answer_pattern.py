"""The user's regular expression for answers, searched within a limit of time."""

import regex

from debate_train.errors import DataError

LIMIT_S = 1.0
"""CPU seconds for one row; some patterns take exponential time on texts of 60 characters."""
_LONGEST = 1000


def checked(pattern: str) -> str:
    """Return a pattern that can be searched for and has a group.

    Raises:
        ValueError: It is no regular expression, has no group, or is too long.
    """
    if len(pattern) > _LONGEST:
        raise ValueError(
            f"found a pattern of {len(pattern):,} characters; expected at most {_LONGEST:,}"
        )
    try:
        groups = regex.compile(pattern).groups
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"found {pattern!r:.80}, no regular expression: {error}") from error
    if groups == 0:
        raise ValueError(f"found {pattern!r:.80}; expected a group (…) around the answer")
    return pattern


def answer_in(pattern: str, text: str, where: str) -> str | None:
    """Return what the pattern's first group holds, None where the pattern is not found.

    Raises:
        DataError: The search takes too long, or the group takes no part in what was found.
    """
    try:
        found = regex.search(pattern, text, timeout=LIMIT_S)
    except TimeoutError as error:
        raise DataError(
            f"{where}: data.answer_pattern: {pattern!r:.80} takes more than {LIMIT_S:g} s on "
            f"{text!r:.60}; expected a pattern without repetitions inside of repetitions, such as "
            "(a+)+"
        ) from error
    if found is None:
        return None
    answer = found.group(1)
    if answer is None:
        raise DataError(
            f"{where}: data.answer_pattern: {pattern!r:.80} is found in {text!r:.60}, but its "
            "first group takes no part; expected a group that holds the answer whenever the "
            "pattern is found"
        )
    return str(answer).strip()
