#!/usr/bin/env bash
# make demo: shards of the novels, three runs that differ in their attention alone, their comparison. Run again, it does only what is not done.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || { echo "demo: $python is missing; run scripts/setup.sh first" >&2; exit 1; }

austen=data/austen
if [ ! -f $austen/prepare.json ]; then
    "$python" data/prepare.py --out $austen --val $austen/persuasion.txt --train \
        $austen/emma.txt $austen/mansfield_park.txt $austen/northanger_abbey.txt $austen/pride_and_prejudice.txt $austen/sense_and_sensibility.txt
fi

runs=()
for attention in baseline sink affine; do
    run=runs/demo/$attention
    runs+=("$run")
    if tail -n 1 "$run/metrics.jsonl" 2>/dev/null | grep -q '^{"event":"end"'; then
        echo "$run is complete"
    elif [ -f "$run/config.json" ]; then
        ./train_gpt --resume "$run"
    else
        ./train_gpt configs/demo-$attention.json
    fi
done
"$python" scripts/compare.py "${runs[@]}" --out=runs/demo-report
