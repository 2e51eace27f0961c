"""Body and Shadow measured on this machine: real processes on pinned cores, each figure beside its goal.

    python -m benchmarks.shadow [NAME…] [--quick]

models     the models that are measured, block sets by their share of the weights, and figures from samples
instances  Bodies and Shadows without a platform, for what two processes can do
node       a platform with Bodies that serve, for what a start costs
The other modules are the benchmarks; each says what it measures.
"""
