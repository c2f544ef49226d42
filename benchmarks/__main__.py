"""`make bench`: every table, one after the other."""

from benchmarks import allocator_speed, cpu_exactness, gloo_truth, large_models, step_speed

step_speed.main()
allocator_speed.main()
large_models.main()
cpu_exactness.main()
gloo_truth.main()
