//! Containers by a container runtime (containerd, CRI-O), over the container runtime interface, version 1.

mod v1;
