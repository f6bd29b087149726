"""The HTML page of a preflight: one file that needs no other."""
