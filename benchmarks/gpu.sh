#!/bin/sh
# Cohorts on one GPU, on made-up data: are they equal to the loop, and how fast are they?
#
#   benchmarks/gpu.sh OUT          all stages, one after the other; those whose file is in OUT are left out
#   benchmarks/gpu.sh OUT STAGE    one of them
#
# Every stage is a command of eight minutes at most. It needs PyTorch with CUDA, NumPy, SciPy, Numba and safetensors;
# the first stage pytest and hypothesis, too.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${1:?say where to write, such as runs/bench-gpu}
STAGES=${2:-equality fedavg fedavg-tf32 hfedms fedgs fedsr hfedms-d}
PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
OMP_NUM_THREADS=1
export PYTHONPATH OMP_NUM_THREADS
mkdir -p "$OUT"

bench() { # what, repeats, precision
    timeout 480 "$PYTHON" benchmarks/gpu.py --only "$1" --repeats "$2" --precision "$3"
}

for stage in $STAGES; do
    [ -s "$OUT/$stage.json" ] && continue
    echo "$stage" >&2
    case $stage in
        equality)
            timeout 480 "$PYTHON" -m pytest -q -p no:cacheprovider tests/engine/test_engine_cohort_cuda.py >"$OUT/equality.txt" 2>&1 ||
                { tail -40 "$OUT/equality.txt" >&2; exit 1; }
            printf '{"equality": "%s"}\n' "$(tail -1 "$OUT/equality.txt")" >"$OUT/part" ;;
        fedavg) bench ' devices' 9 float32 >"$OUT/part" ;;
        fedavg-tf32) bench ' devices' 9 tf32 >"$OUT/part" ;;
        hfedms) bench 'HFedMS cnn' 9 float32 >"$OUT/part" ;;
        fedgs) bench FedGS 50 float32 >"$OUT/part" ;;
        fedsr) bench FedSR 50 float32 >"$OUT/part" ;;
        hfedms-d) bench HFedMS-D 50 float32 >"$OUT/part" ;;
        *) echo "unknown stage $stage" >&2; exit 2 ;;
    esac
    mv "$OUT/part" "$OUT/$stage.json"
done
