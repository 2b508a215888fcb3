"""Which operations become one kernel: selection, growth and what it saves."""
