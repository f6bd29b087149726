"""A TPU slice simulated on the CPU; ``slice`` sets it up, ``numerics`` rounds as a TPU does.

>>> import neurenix as nx
>>> nx.simulate("v5e-8").num_devices
8
"""

from neurenix.simulation.slice import SimulatedSlice, simulate, simulated

__all__ = ["SimulatedSlice", "simulate", "simulated"]
