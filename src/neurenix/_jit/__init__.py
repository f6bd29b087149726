"""Support for compiling functions of modules and arrays.

Used by ``nx.jit``, ``nx.multi_step``, ``strategy.run``, training and preflight. Owns modules as
lists of arrays, modules captured by closure, static arguments, and reports of recompilation. Does
not compile.
"""
