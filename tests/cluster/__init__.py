"""A real Kubernetes for tests, on one machine, from nothing but Go modules and Debian packages.

    python -m tests.cluster up          boot it: etcd, apiserver, controller manager, scheduler, kubelet on containerd,
                                        kube-proxy, CoreDNS and Knative Serving; prints the kubeconfig
    python -m tests.cluster down        end it and remove all that it made
    python -m tests.cluster run -- …    run a command against it, or against the cluster that KUBECONFIG names
    python -m tests.cluster.conformance Knative Serving's conformance tests, by the stock autoscaler class and by ours

No image registry is needed: images are written here as archives and imported. What has been compiled once is kept
(`build.py`). What was on the machine before a boot is written down (`machine.py`), so that `down` also works after a crash.

The modules in the order in which a boot passes them: `settings` (versions, addresses, folders), `requirements` (what the machine
lacks), `build` (compiling), `images`, `machine`, `processes`, `control_plane`, `node`, `knative`; `cluster` is the boot and its
end. For tests: `client`, `models` (volumes and coordinators of functions with models), `fake_nodes` (kwok), `envoy` (an ingress).
"""
