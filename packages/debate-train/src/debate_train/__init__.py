"""Train and measure language models on debate."""

from typing import TYPE_CHECKING

from debate_protocol import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_train.running.run import Trained as Trained
    from debate_train.running.run import train as train
    from debate_train.running.run_context import StepEnd as StepEnd

__getattr__, __dir__, __all__ = lazy_names(__name__)
