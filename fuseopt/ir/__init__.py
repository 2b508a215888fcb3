"""The intermediate forms: tensor expressions as lifted, and the loop kernels they become."""
