"""`ML` makes contexts, `MLContext` runs graphs on a device, and `MLGraphBuilder` builds them."""
