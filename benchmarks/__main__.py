"""`make bench`: every table, one after the other."""

from benchmarks import (
    advisor_truth,
    allocator_speed,
    cpu_exactness,
    dtr_curve,
    dtr_floor,
    dtr_logs,
    dtr_policies,
    dtr_prediction,
    dtr_training,
    gloo_truth,
    large_models,
    local_time,
    page_size,
    step_speed,
)

step_speed.main()
allocator_speed.main()
page_size.main(["1"])
large_models.main()
cpu_exactness.main()
gloo_truth.main()
local_time.main([])
dtr_training.main()
dtr_floor.main()
dtr_prediction.main()
dtr_policies.main()
dtr_logs.main()
dtr_curve.main()
advisor_truth.main()
