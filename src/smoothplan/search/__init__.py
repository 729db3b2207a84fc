"""Planning by bounds: intervals on the values of discovered states, and where to sample next."""
