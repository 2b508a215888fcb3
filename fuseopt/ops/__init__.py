"""What each ATen operation means, in primitives: one declaration an op."""
