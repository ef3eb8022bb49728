"""The report's Jinja2 templates: all that they are given is cleaned and escaped."""

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup

# Characters that HTML forbids or that would let a text reorder its surroundings.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def render(template: str, **values: object) -> Markup:
    """Return a filled template of this package; what is `Markup` already is not escaped again.

    Raises:
        jinja2.UndefinedError: The template names a value that it was not given.
        TypeError: A value to be written is neither text nor a number.
    """
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("debate_train.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = "{:,}".format
    return environment


def _clean(value: object) -> str | int:
    """Return a value as a template may write it, before it is escaped.

    Jinja2 calls this with every value that a template writes. `{{ a if b }}` is an undefined value
    that is written as nothing; any other that is undefined raises here.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str | int | Undefined):
        raise TypeError(f"a report shows text and numbers, found {value}")
    text = str(value).replace("\r\n", "\n")
    text = _BIDI.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
    return _FORBIDDEN.sub("\ufffd", text)
