"""The page's templates and what they may write."""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup

# HTML forbids these characters.
FORBIDDEN_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
# A text with these can reorder its surroundings.
BIDI_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Live:
    """What the page of a run that goes on says of itself.

    Attributes:
        progress: How far the run is.
        written: When the page was written.
        interval_s: Seconds until it reloads itself.
    """

    progress: str
    written: datetime
    interval_s: float


def render(template: str, **values: object) -> Markup:
    """Fill a template of this package; values that are `Markup` are not escaped again.

    Raises:
        jinja2.UndefinedError: The template names a value that was not passed.
        TypeError: A value to be written is neither text nor a number.
    """
    filled = template_environment().get_template(template).render(values)
    return Markup(filled)


@cache
def template_environment() -> Environment:
    """Build the environment in which all templates are filled, with escaping on."""
    environment = Environment(
        loader=PackageLoader("debate_report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_as_writable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = "{:,}".format
    return environment


def _as_writable(value: object) -> str | int:
    """Prepare a value that a template writes, before it is escaped."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    # `{{ a if b }}` is undefined where b is false, and `str` below writes it as nothing; any other
    # undefined value raises there.
    if not isinstance(value, str | int | Undefined):
        raise TypeError(f"a report shows text and numbers, found {value}")
    text = str(value).replace("\r\n", "\n")
    text = BIDI_CONTROLS.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)
    return FORBIDDEN_CHARACTERS.sub("\ufffd", text)
