"""`navigator.ml` for browsers and Node.js on this machine, computed by Opweave."""
