"""The operator's side: ``views`` asks, ``actions`` acts, ``doctor`` looks for trouble; surfaces are thin over them."""
