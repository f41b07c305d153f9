"""The critical-path exporter: follows finished traces through Tempo's API and turns them into Prometheus metrics.

``scan`` finds traces of a window, ``judge`` says what one counts as, ``follower`` waits for late spans and counts each
trace once (``state`` remembers which), ``difference`` compares push and pull over a sliding window, ``metrics`` is what
Prometheus reads, ``loop`` is the thread, ``app`` the HTTP face.
"""
