"""What compiled functions of the user's share: modules as arrays, arguments by their names.

``nx.jit``, ``nx.multi_step``, ``strategy.run``, training and preflight all take a function of
modules and arrays. Owns the walk over the modules, what a function holds without being given it,
static arguments, and telling why it compiles again. It compiles nothing.
"""
