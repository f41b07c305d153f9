"""What can go wrong in a probe, for the user.

Exception
└── ProbeError            one line: what failed, where, what to try
    ├── PeerError         the other side failed, and said why
    └── LostPeerError     the other side is gone, silent or somebody else: why, only it could tell
"""

from __future__ import annotations


class ProbeError(Exception):
    """The probe cannot go on. The message is one line for the user."""


class PeerError(ProbeError):
    """The other side of the probe gave up; the message is its own."""


class LostPeerError(ProbeError):
    """The other side does not answer as it should."""
