"""The dashboards, one module each, in the order in which one looks at them."""

from dashboards.boards import engines, push_pull, telemetry, traces, transfer
from dashboards.model import Board

BOARDS: tuple[Board, ...] = (push_pull.BOARD, transfer.BOARD, engines.BOARD, traces.BOARD, telemetry.BOARD)
