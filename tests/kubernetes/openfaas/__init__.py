"""The platform `openfaas` on a real control plane, where pods are played by threads of the test."""
