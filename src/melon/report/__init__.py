"""What a bench showed, as one page, as Markdown, and as figures."""
