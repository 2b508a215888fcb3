"""From a captured model to functional ATen graphs, and back from regions to a graph."""
