"""A run directory as one self-contained page: `write_report`, and `debate-report RUN_DIR`."""

from debate_train.report.page import report_main, write_report

__all__ = ["report_main", "write_report"]
