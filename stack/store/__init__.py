"""The embedded trace store: OTLP/HTTP in, SQLite, Tempo's query API out.

``app`` serves both sides; ``otlp`` decodes what comes in, ``writer`` (one thread) stores it through ``database``;
``reader`` reads it back, ``search`` answers TraceQL (``traceql`` parses, ``plan`` narrows, ``evaluate`` decides).
"""
