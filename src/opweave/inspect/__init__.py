"""Inspection of graphs: explanations, profiles, drawings, and the operations that back ends support."""
