"""Chains around a reference Q̂: references, engines and `ReferenceCruiser`."""
