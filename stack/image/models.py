"""Prepares the models that an engine image carries: ``python -m stack.image.models``, while the image is built."""

from __future__ import annotations

from stack.engines.model import default_cache, prepare_random, prepare_smollm2

if __name__ == "__main__":
    for prepare in (prepare_smollm2, prepare_random):
        print(prepare(default_cache(), print))
