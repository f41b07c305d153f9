"""The experiment: interleaved blocks of two modes on the same engines, their statistics, and a verdict."""
