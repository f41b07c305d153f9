"""The link probe: what NIXL's READ and WRITE cost between two hosts with an engine's real block shape.

A comparison of push and pull means something only when the link is known. The probe makes two real NIXL agents, the
prefill side and the decode side, lays out blocks as vLLM does, and moves them the way the engines do: the prefill
side WRITEs (push), the decode side READs (pull). Every byte that arrives is checked.

    shape.py           a model's KV blocks             plan.py      what to measure, also on the wire
    layout.py          block ids and descriptors       memory.py    the blocks, and the check of what arrived
    capacity.py        the memory that there is        control.py   the channel between the two sides
    agent.py           one NIXL agent                  protocol_table.py  the transport that UCX chose
    side.py            one side of the probe           side_process.py    the process it runs in
    run.py             starts the sides                result.py    what they measured, as one document
    report.py, command.py  the terminal
"""

from stack.probe.errors import ProbeError
from stack.probe.run import run_probe
from stack.probe.shape import BlockShape

__all__ = ["BlockShape", "ProbeError", "run_probe"]
