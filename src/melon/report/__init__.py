"""What records show, as one page, as Markdown, as figures, and as tables for papers."""

from melon.report.result import result_page

__all__ = ["result_page"]
