"""Recursive planners: schedules of certified levels, and the engines that execute them."""
