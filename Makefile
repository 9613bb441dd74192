# Needs cargo; uses cargo-nextest and cargo-deny where they are installed.

CARGO ?= cargo
RUN_ARGS ?= --manifests examples
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
DENY := $(shell $(CARGO) deny --version >/dev/null 2>&1 && echo yes)

# What the tests use beyond cargo is installed where it is missing, by root on Debian. `make test INSTALL=no` installs
# nothing. Tests without their program are skipped; PODWRIGHT_REQUIRE=containerd,browser makes them fail instead.
INSTALL ?= yes
export INSTALL
HAVE_BROWSER = command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable
HAVE_CONTAINERD = command -v containerd && command -v runc && [ -x /bin/busybox ] && { [ -d /usr/lib/cni ] || [ -d /opt/cni/bin ]; }
HAVE_VALGRIND = command -v valgrind
HAVE_VM = command -v mmdebstrap && command -v qemu-system-x86_64 && command -v mke2fs && command -v ssh-keygen

.PHONY: run demo-dra test test-vm browser containers lint bench instructions

# Runs the pods of examples/ and shows them in a live table. State is kept in the default root directory.
run:
	$(CARGO) build --release --bin podwright
	target/release/podwright run $(RUN_ARGS)

# Shows a pod with a device, without a cluster: an API server in memory, the agent and a driver with simulated devices.
demo-dra:
	$(CARGO) build --bin podwright --example dra_driver --example dra_demo
	$${CARGO_TARGET_DIR:-target}/debug/examples/dra_demo

test: browser containers
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --workspace
else
	$(CARGO) build --examples
	$(CARGO) test --workspace --lib --bins --tests
endif
	$(CARGO) test --workspace --doc
	$(CARGO) test --workspace --bench '*'
	@{ $(HAVE_BROWSER); } >/dev/null || echo "skipped: tests of the page in a browser"
	@{ $(HAVE_CONTAINERD); } >/dev/null || echo "skipped: tests that run pods as containers"

browser:
	@{ $(HAVE_BROWSER); } >/dev/null || .ci/install "test the page in a browser" chromium

# Checks that need a whole machine: systemd, cgroup version 2, power cuts, a clock of its own. Builds a virtual machine of Debian
# packages in target/vm and boots it in software emulation, so it takes many minutes. `make test-vm CHECKS="slices oom"` runs only
# these files of tests/vm/checks.
test-vm:
	@{ $(HAVE_VM); } >/dev/null || .ci/install "run checks on a virtual machine" mmdebstrap qemu-system-x86 e2fsprogs openssh-client
	$(CARGO) build --bin podwright
	$(CARGO) build -p podwright-stand-in --example stand-in
	tests/vm/run target/debug/podwright $(CHECKS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --all-targets --no-default-features --features podwright/engine -- -D warnings
	@# Each feature alone, for embedders. Without the binary's feature, no dependency chooses a version of the Kubernetes API.
	for features in controllers cri dra dra-driver engine kube process simulated cri,process dra,kube; do \
		K8S_OPENAPI_ENABLED_VERSION=1.36 \
		$(CARGO) clippy -p podwright --no-default-features --features $$features -- -D warnings || exit 1; done
	for features in agent agent,controllers agent,cri agent,dra agent,kube agent,process agent,simulated; do \
		$(CARGO) clippy -p podwright --no-default-features --features $$features -- -D warnings || exit 1; done
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir target --locked --no-default-features --features dra,kube -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
ifeq ($(DENY),yes)
	$(CARGO) deny check
else
	@echo "cargo-deny is not installed: licences and advisories were not checked"
endif

# The tests start a containerd of their own.
containers:
	@{ $(HAVE_CONTAINERD); } >/dev/null || .ci/install "run the tests' pods as containers" \
		containerd runc containernetworking-plugins busybox-static

bench: containers
	$(CARGO) bench --bench engine
	$(CARGO) bench --bench node
	$(CARGO) bench --bench claims
	$(CARGO) bench --bench controllers
	$(CARGO) bench --bench containers

# Compares the instructions that the hot paths execute with the committed counts.
instructions:
	@{ $(HAVE_VALGRIND); } >/dev/null || .ci/install "count instructions" valgrind
	@if { $(HAVE_VALGRIND); } >/dev/null; then $(CARGO) bench -p podwright-actors --bench instructions; \
		else echo "valgrind is not installed: instructions were not counted"; fi
