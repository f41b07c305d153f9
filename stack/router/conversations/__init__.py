"""What the router remembers of conversations in mode reuse: where the KV cache of their last turn lies, and no text."""
