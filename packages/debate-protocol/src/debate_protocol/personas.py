"""The manners of thinking that agents are given, with the temperature each is sampled at."""

from pydantic import Field

from debate_protocol.config import Config


class Persona(Config):
    """A manner of thinking. `style` completes the prompt; `temperature` is the sampler's."""

    name: str = Field(min_length=1)
    """What it is called."""
    style: str = ""
    """Text that completes the prompt."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""


DEFAULT_PERSONAS: tuple[Persona, ...] = (
    Persona(
        name="Methodical Analyst",
        style="Work systematically, one justified step at a time, and check each step.",
        temperature=0.6,
    ),
    Persona(
        name="Creative Problem-Solver",
        style="Look for unconventional approaches that others are likely to miss.",
        temperature=1.0,
    ),
    Persona(
        name="Devil's Advocate",
        style="Be sceptical: look for counterexamples and for the weakest step of every argument.",
        temperature=0.9,
    ),
    Persona(
        name="Synthesizer",
        style="Bring the strongest parts of different viewpoints together.",
        temperature=1.0,
    ),
    Persona(
        name="First Principles Thinker",
        style="Go back to definitions and fundamentals, and build the answer up from them.",
        temperature=0.8,
    ),
)
"""The five personas of the Tinker debate note, section 2.4; agent i takes number i mod 5."""
