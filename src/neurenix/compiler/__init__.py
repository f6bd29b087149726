"""The core of preflight: any jittable function, compiled for a TPU slice that is not here.

``program`` traces and serialises, ``worker`` compiles in a process of its own, ``compile`` runs
workers and ``cache`` remembers; ``hlo`` reads the result, ``memory``, ``time`` and ``findings``
judge it. Nothing in here needs a live device, and nothing knows of models, trainers or reports.
"""
