"""The operator's side: ``views`` asks, ``actions`` acts, ``doctor`` looks for trouble; every surface is thin over them."""
