"""The demo: real requests in both modes from an independent client, and what the traces say about them."""
