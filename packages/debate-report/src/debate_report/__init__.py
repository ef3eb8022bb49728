"""Runs, evaluations and rollouts as one page without other files."""

from typing import TYPE_CHECKING

from debate_protocol import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_report.page import write_report as write_report
    from debate_report.report_command import report_main as report_main

__getattr__, __dir__, __all__ = lazy_names(__name__)
