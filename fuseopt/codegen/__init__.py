"""From a loop kernel to Triton source: schedules and the printer."""
