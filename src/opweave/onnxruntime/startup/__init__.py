"""The folder that `opweave exec` puts on `PYTHONPATH`, so that Python imports its `sitecustomize` when it starts."""
