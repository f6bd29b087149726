"""The report of a preflight: its values, as text and as JSON, and comparisons of two reports."""
