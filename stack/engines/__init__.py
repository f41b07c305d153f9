"""The vLLM engines: models, command lines, and processes that are started, watched and stopped together."""
