"""What the admin pages stand on: a read-only connection to the projections, and how their contents are shown."""
