"""Reads traces and says where the time to the first token went: critical path, comparison, reports."""
