"""Research tools: bench, report, advice, figures and the paper's reproduction."""
