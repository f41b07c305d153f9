"""The container images of kvpath, and what runs in them besides the parts themselves."""
