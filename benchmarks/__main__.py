"""`make bench`: every table, one after the other."""

from benchmarks import (
    allocator_speed,
    cpu_exactness,
    gloo_truth,
    large_models,
    local_time,
    page_size,
    step_speed,
)
from benchmarks.dtr import advisor_truth
from benchmarks.dtr import curve as dtr_curve
from benchmarks.dtr import floor as dtr_floor
from benchmarks.dtr import logs as dtr_logs
from benchmarks.dtr import policies as dtr_policies
from benchmarks.dtr import prediction as dtr_prediction
from benchmarks.dtr import training as dtr_training

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
