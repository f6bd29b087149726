"""Losses and metrics that somebody else wrote: how their arguments align, what they couple.

Owns finding that out, and refusing objects of other libraries. What follows from it is for
``neurenix.losses``, ``neurenix.metrics`` and ``neurenix.train``.
"""
