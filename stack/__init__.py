"""The deployment around the connector: router, engines, trace store, analysis, and the commands that run them."""
