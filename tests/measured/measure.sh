#!/usr/bin/env bash
# Measures everything anew on this machine's GPU, and makes README's tables of it.
# Each step keeps what it has measured when it is interrupted. Steps may be named: measure.sh models
set -euo pipefail
cd "$(dirname "$0")"
models() {
    targets=(bert_large gpt2_medium llama_1b qwen3_600m gemma2 t5_large_encoder vit_large convnext_base)
    fuseopt bench "${targets[@]/#/../../examples/models.py:}" --providers eager,fuseopt --json models.json
}
training() {
    targets=(bert_large_training gpt2_medium_training llama_1b_training qwen3_600m_training vit_large_training)
    fuseopt bench "${targets[@]/#/../../examples/models.py:}" --train --json training.json
}
kernels() { fuseopt bench --kernels target --json kernels.json; }
gradients() { fuseopt bench --kernels target-backward --json gradients.json; }
unseen() { fuseopt bench --kernels unseen --json unseen.json; }
for step in "${@:-models training kernels gradients unseen}"; do
    for name in $step; do "$name"; done
done
python -m fuseopt.bench.tables . ../../README.md
