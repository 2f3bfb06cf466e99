"""When and how blocks move between tiers."""
