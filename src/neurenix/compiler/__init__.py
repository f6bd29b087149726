"""Compile any jittable function for a TPU slice without TPUs, and analyse the result.

``program`` traces, ``lowering`` lowers to StableHLO, ``worker`` compiles in a separate process,
``compile`` runs the workers, and ``cache`` stores their results. ``hlo`` parses the compiled
program; ``peak_memory``, ``step_time`` and ``findings`` analyse it. ``nxc_format`` writes
executables to files. Only ``load_compiled`` needs a live device. Nothing here knows models,
trainers or reports.
"""
