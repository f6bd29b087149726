"""Searches: which slice, mesh, batch and options are best, and the largest batch that fits."""
