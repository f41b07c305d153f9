"""Why an experiment ends before its end. Each message is one line for the user.

PlanError (plan.py)         what was asked for makes no sense            exit status 2
PromptsError (prompts.py)   the prompts file cannot be used              2
FolderError (run_folder.py) the folder is another experiment's           2
TargetError (target.py)     there is no router that is ready             2
ExperimentError             the router or an engine refused the work     its own ``exit_code``
"""

from __future__ import annotations

EXIT_FAILED, EXIT_USAGE = 1, 2


class ExperimentError(Exception):
    """The experiment cannot go on. What was recorded stays."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
