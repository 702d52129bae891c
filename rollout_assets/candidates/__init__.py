"""Which views may be taken: positions, orientations, mixtures and the rules that make a view takeable."""
