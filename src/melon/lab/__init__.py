"""Research tools: bench, report, figures and the paper's reproduction."""
