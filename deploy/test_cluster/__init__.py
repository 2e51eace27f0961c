"""A real Kubernetes for tests, on one machine, from nothing but Go modules and Debian packages.

    python -m deploy.test_cluster up        boots it: etcd, apiserver, controller manager, scheduler, kubelet on containerd,
                                            kube-proxy, CoreDNS and Knative Serving; prints the kubeconfig
    python -m deploy.test_cluster down      ends it and removes all that it made
    python -m deploy.test_cluster run -- …  runs a command against it, or against the cluster that KUBECONFIG names

No image registry is needed: images are written here as archives and imported. What has been compiled once is kept
(`build.py`); what runs writes down what it makes (`ledger.py`), so that `down` also works after a crash or a reboot.

The modules in the order in which a boot passes them: `settings` (versions, addresses, folders), `needs` (what the machine
lacks), `build` (compiling), `images` (archives), `certificates`, `processes`, `control_plane`, `node`, `knative`, `teardown`.
"""
