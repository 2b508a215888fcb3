"""From a region of a graph to a loop kernel."""
