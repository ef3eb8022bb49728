"""Runs, evaluations and rollouts as one page that needs nothing else."""

from debate_report.page import report_main, write_report

__version__ = "0.1.0"

__all__ = ["report_main", "write_report"]
