"""The core of preflight: any jittable function, compiled for a TPU slice that is not here.

``program`` traces, ``lowering`` brings that into the compiler's language, ``worker`` compiles it in
a process of its own, ``compile`` runs workers and ``cache`` remembers; ``hlo`` reads
the result, ``memory``, ``time`` and ``findings`` judge it. ``artefact`` keeps an executable in a
file. Nothing in here needs a live device but ``loaded``, which runs one; nothing knows of models,
trainers or reports.
"""
