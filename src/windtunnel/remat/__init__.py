"""Events and a budget into what to forget and when to compute it again."""
