"""What every room uses: errors, caches, files, names, numbers of processors. It knows nothing of operations."""
