"""Types that every decision shares: plans and amounts, the throughput model, Pareto fronts."""
